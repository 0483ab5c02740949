"""How densely things lie along a range, as inline SVG: a step for each bin."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from evidcore.page.markup import Html, tag

_WIDTH, _HEIGHT = 360, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 30, 12, 10, 26


@dataclasses.dataclass(frozen=True, kw_only=True)
class Density:
    """One outline: the bins share the range in equal parts, 1 is an even spread."""

    label: str
    values: Sequence[float]


def densities(title: str, rows: Sequence[Density], *, start: str, stop: str, caption: object) -> Html:
    """Draw outlines over each other.

    Args:
        title: what is drawn.
        rows: at most six outlines.
        start: name of the range's left end.
        stop: name of its right end.
        caption: what is seen, in a sentence.
    """
    top = max([1.0, *(value for row in rows for value in row.values)]) * 1.05

    def x_at(share: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * share

    def y_at(value: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - value / top)

    marks: list[Html] = []
    for value in range(int(top) + 1):
        y = f"{y_at(value):.1f}"
        marks.append(tag("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=y, y2=y, class_="grid"))
        marks.append(tag("text", value, x=_LEFT - 6, y=f"{y_at(value) + 3.5:.1f}", class_="y"))
    marks.append(tag("text", start, x=_LEFT, y=_HEIGHT - 8, text_anchor="start"))
    marks.append(tag("text", stop, x=_WIDTH - _RIGHT, y=_HEIGHT - 8, text_anchor="end"))
    for place, row in enumerate(rows):
        bins = len(row.values)
        corners = [
            f"{x_at(end / bins):.1f} {y_at(value):.1f}"
            for number, value in enumerate(row.values)
            for end in (number, number + 1)
        ]
        marks.append(tag("path", d="M" + "L".join(corners), class_=f"mean s{place}"))
    drawn = tag("svg", *marks, viewBox=f"0 0 {_WIDTH} {_HEIGHT}", role="img", aria_label=_spoken(title, rows))
    keys = tag(
        "span", *(tag("span", row.label, class_=f"key s{i}") for i, row in enumerate(rows)), class_="keys"
    )
    return tag(
        "figure",
        tag("figcaption", tag("b", title), tag("span", caption, class_="faint")),
        drawn,
        keys,
        class_="curve",
    )


def _spoken(title: str, rows: Sequence[Density]) -> str:
    peaks = "; ".join(
        f"{row.label} densest in part {max(range(len(row.values)), key=row.values.__getitem__) + 1} "
        f"of {len(row.values)}"
        for row in rows
        if row.values
    )
    return f"{title}: {peaks}"
