"""How a figure changes with the distance from a prompt, as inline SVG: a line for each row."""

import dataclasses
from collections.abc import Sequence

from evidcore_plugin_pages.markup import Html, Unit, join, tag, written

_WIDTH, _HEIGHT = 360, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 12, 10, 40
_SPREAD = 5  # px between the intervals of one distance


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fall:
    """One line: a value for each distance with the ends of its interval; None where nothing was measured."""

    label: str
    points: Sequence[tuple[float, float | None, float | None] | None]  # value, low, high


def by_distance(
    title: str,
    rows: Sequence[Fall],
    distances: Sequence[str],
    *,
    axis: str,
    unit: Unit,
    caption: object,
    top: float | None = None,
) -> Html:
    """Draw at most six lines over each other, near to far; distances are at equal steps along `axis`.

    The value axis ends at `top`, or at the highest value.
    """
    points = [point for row in rows for point in row.points if point is not None]
    drawn = [value for point in points for value in (point[0], point[2]) if value is not None]
    ceiling = top if top is not None else 1.05 * max([*drawn, 1e-6])

    def x_at(place: int, row: int) -> float:
        step = (_WIDTH - _LEFT - _RIGHT) / len(distances)
        return _LEFT + step * (place + 0.5) + _SPREAD * (row - (len(rows) - 1) / 2)

    def y_at(value: float) -> float:
        share = min(max(value / ceiling, 0.0), 1.0)
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - share)

    marks: list[Html] = []
    for quarter in range(5):
        value = ceiling * quarter / 4
        y = f"{y_at(value):.1f}"
        marks.append(tag("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=y, y2=y, class_="grid"))
        label = f"{100 * value:.0f} %" if unit == "rate" else f"{value:.3g}"
        marks.append(tag("text", label, x=_LEFT - 6, y=f"{y_at(value) + 3.5:.1f}", class_="y"))
    for place, name in enumerate(distances):
        x = f"{x_at(place, 0) + _SPREAD * (len(rows) - 1) / 2:.1f}"
        marks.append(tag("text", name, x=x, y=_HEIGHT - 24, text_anchor="middle"))
    middle = f"{(_LEFT + _WIDTH - _RIGHT) / 2:.1f}"
    marks.append(tag("text", axis, x=middle, y=_HEIGHT - 6, text_anchor="middle"))
    for number, row in enumerate(rows):
        tone = f"s{number}"
        known = [(place, point) for place, point in enumerate(row.points) if point is not None]
        line = join((f"{x_at(place, number):.1f} {y_at(point[0]):.1f}" for place, point in known), "L")
        if len(known) > 1:
            marks.append(tag("path", d=f"M{line}", class_=f"mean {tone}"))
        for place, (value, low, high) in known:
            x = f"{x_at(place, number):.1f}"
            if low is not None and high is not None:
                ends = f"M{x} {y_at(low):.1f}L{x} {y_at(high):.1f}"
                marks.append(tag("path", d=ends, class_=f"raw {tone}"))
            hint = tag("title", f"{row.label}, {distances[place]}: {written(value, unit)}")
            marks.append(tag("circle", hint, cx=x, cy=f"{y_at(value):.1f}", r=3, class_=tone))
    svg = tag(
        "svg", *marks, viewBox=f"0 0 {_WIDTH} {_HEIGHT}", role="img",
        aria_label=_spoken(title, rows, distances, unit),
    )  # fmt: skip
    keys = [tag("span", row.label, class_=f"key s{number}") for number, row in enumerate(rows)]
    return tag(
        "figure",
        tag("figcaption", tag("b", title), tag("span", caption, class_="faint")),
        svg,
        tag("span", *keys, class_="keys"),
        class_="curve",
    )


def _spoken(title: str, rows: Sequence[Fall], distances: Sequence[str], unit: Unit) -> str:
    texts = []
    for row in rows:
        known = [(name, point[0]) for name, point in zip(distances, row.points, strict=True) if point]
        if known:
            (near, first), (far, last) = known[0], known[-1]
            ends = f"{written(first, unit)} at {near} to {written(last, unit)} at {far}"
            texts.append(f"{row.label} from {ends}")
    return f"{title}: {'; '.join(texts)}"
