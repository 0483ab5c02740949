"""Charts as inline SVG: intervals in lanes, and curves over steps."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

from evidcore_plugin_pages.markup import MINUS, Html, Unit, data_block, interval, join, number, tag, written

_LANE_PX = 22
_CURVE_WIDTH, _CURVE_HEIGHT = 360, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 12, 10, 26
_Place = Callable[[float], float]
_MOST_POINTS = 400  # more cannot be told apart at this width


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lane:
    """One value with its interval, drawn on an axis of its own row."""

    label: object  # text or markup
    value: float
    low: float | None = None
    high: float | None = None
    tone: str = "own"  # own | other | blank | quiet: the colour class
    lines: Mapping[str, float] = dataclasses.field(default_factory=dict)  # reference lines, by name


def lanes(rows: Sequence[Lane], *, start: float, stop: float, unit: Unit, caption: object) -> Html:
    """Draw each row's value as a dot, its interval as a bar and its reference lines as ticks.

    Args:
        rows: what is drawn, top to bottom.
        start: left end of the axis, in the unit of the values.
        stop: right end of the axis.
        unit: how the values are written.
        caption: what is seen, in a sentence.
    """
    drawn = [_lane(row, start, stop, unit) for row in rows]
    return tag(
        "figure",
        tag("div", *drawn, _axis(start, stop, unit), class_="lanes"),
        tag("figcaption", caption),
        class_="chart",
    )


def _lane(row: Lane, start: float, stop: float, unit: Unit) -> Html:
    def at(value: float) -> str:
        share = (min(max(value, start), stop) - start) / (stop - start)
        return f"{100 * share:.2f}%"

    middle = _LANE_PX / 2
    marks = [tag("line", x1="0%", x2="100%", y1=middle, y2=middle, class_="rail")]
    if start < 0.0 < stop:
        marks.append(tag("line", x1=at(0.0), x2=at(0.0), y1=0, y2=_LANE_PX, class_="zero"))
    for name, value in row.lines.items():
        marks.append(
            tag(
                "line",
                tag("title", f"{name.replace('_', ' ')}: {written(value, unit)}"),
                x1=at(value), x2=at(value), y1=2, y2=_LANE_PX - 2,
                class_=f"line {name.replace('_', '-')}",
            )
        )  # fmt: skip
    if row.low is not None and row.high is not None:
        marks.append(tag("line", x1=at(row.low), x2=at(row.high), y1=middle, y2=middle, class_="spread"))
    marks.append(tag("circle", cx=at(row.value), cy=middle, r=5, class_="dot"))
    figures = tag(
        "span",
        tag("b", number(row.value, unit)),
        tag("span", " (", interval(row.low, row.high, unit), ")", class_="faint")
        if row.low is not None
        else None,
        class_="figures",
    )
    return tag(
        "div",
        tag("span", row.label, class_="label"),
        figures,
        tag("svg", *marks, height=_LANE_PX, width="100%", aria_hidden="true"),
        class_=f"lane {row.tone}",
    )


def _axis(start: float, stop: float, unit: Unit) -> Html:
    ticks = [start + (stop - start) * share for share in (0, 0.25, 0.5, 0.75, 1)]
    marks = []
    for index, value in enumerate(ticks):
        anchor = "start" if index == 0 else "end" if index == len(ticks) - 1 else "middle"
        text = f"{100 * value:.0f}".replace("-", MINUS) + (" %" if unit == "rate" and value == stop else "")
        if unit not in ("rate", "score", "points"):
            text = written(value, unit)
        marks.append(tag("text", text, x=f"{25 * index}%", y=12, text_anchor=anchor))
    return tag("svg", *marks, height=16, width="100%", class_="axis", aria_hidden="true")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Curve:
    """One line over steps."""

    label: str
    steps: Sequence[int]
    values: Sequence[float]


def curves(title: str, rows: Sequence[Curve], *, unit: Unit = "plain", note: str = "") -> Html:
    """Draw curves over steps: every value thin, a running mean bold; the script adds a tooltip.

    Args:
        title: what is drawn.
        rows: at most six lines.
        unit: how values are written.
        note: a word under the title.
    """
    finite = [value for row in rows for value in row.values if math.isfinite(value)]
    if not finite:
        return tag(
            "figure",
            tag("figcaption", tag("b", title)),
            tag("p", "No finite value was logged."),
            class_="curve",
        )
    first, last = min(min(row.steps) for row in rows), max(max(row.steps) for row in rows)
    bottom, top = _bounds(finite, unit)
    ticks = _ticks(bottom, top)

    def x_at(step: float) -> float:
        return _LEFT + (_CURVE_WIDTH - _LEFT - _RIGHT) * (step - first) / max(last - first, 1)

    def y_at(value: float) -> float:
        return _TOP + (_CURVE_HEIGHT - _TOP - _BOTTOM) * (top - value) / (top - bottom)

    marks: list[Html] = []
    for value in ticks:
        y = f"{y_at(value):.1f}"
        marks.append(tag("line", x1=_LEFT, x2=_CURVE_WIDTH - _RIGHT, y1=y, y2=y, class_="grid"))
        marks.append(tag("text", _tick(value, unit), x=_LEFT - 6, y=f"{y_at(value) + 3.5:.1f}", class_="y"))
    for step, anchor in ((first, "start"), (last, "end")):
        said = f"step {step}" if step == first else step
        x = f"{x_at(step):.1f}"
        marks.append(tag("text", said, x=x, y=_CURVE_HEIGHT - 8, text_anchor=anchor))
    for index, row in enumerate(rows):
        points = [(s, v) for s, v in zip(row.steps, row.values, strict=True) if math.isfinite(v)]
        tone = f"s{index}"
        thin = len(points) > 30
        if thin:
            marks.append(_path(_thinned(points), x_at, y_at, f"raw {tone}"))
        marks.append(_path(_thinned(_running_mean(points)) if thin else points, x_at, y_at, f"mean {tone}"))
        if len(points) == 1:
            ((step, value),) = points
            marks.append(tag("circle", cx=f"{x_at(step):.1f}", cy=f"{y_at(value):.1f}", r=3, class_=tone))
    marks.append(tag("line", y1=_TOP, y2=_CURVE_HEIGHT - _BOTTOM, x1=-9, x2=-9, class_="cursor"))
    drawn = tag(
        "svg", *marks, viewBox=f"0 0 {_CURVE_WIDTH} {_CURVE_HEIGHT}", role="img", tabindex="0",
        aria_label=_spoken(title, rows, unit),
    )  # fmt: skip
    legend = (
        tag(
            "span", *(tag("span", row.label, class_=f"key s{i}") for i, row in enumerate(rows)), class_="keys"
        )
        if len(rows) > 1
        else None
    )
    points_of = {
        "unit": unit, "first": first, "last": last,
        "area": [_LEFT, _CURVE_WIDTH - _RIGHT, _CURVE_WIDTH],
        "curves": [{"label": r.label, "steps": list(r.steps), "values": list(r.values)} for r in rows],
    }  # fmt: skip
    return tag(
        "figure",
        tag("figcaption", tag("b", title), tag("span", note, class_="faint") if note else None),
        drawn,
        legend,
        data_block(points_of, class_="points"),
        class_="curve",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Branch:
    """One answer of a tree: a line of tokens that leaves its parent's."""

    label: str
    length: int  # in tokens
    parent: int | None = None  # its number among the branches
    start: int = 0  # the first token that it does not share with its parent


def forks(branches: Sequence[Branch], caption: object) -> Html:
    """Draw answers over their tokens, each fork below its parent and joined to it where it leaves it."""
    rows: list[int] = []

    def place(parent: int | None) -> None:
        for index, item in enumerate(branches):
            if item.parent == parent:
                rows.append(index)
                place(index)

    place(None)
    longest = max(1, *(item.length for item in branches))

    def at(token: int) -> str:
        return f"{90 * min(token, longest) / longest:.2f}%"

    marks: list[Html] = []
    for row, index in enumerate(rows):
        item, y = branches[index], _LANE_PX * (row + 0.5)
        begin = at(item.start)
        if item.parent is not None:
            above = _LANE_PX * (rows.index(item.parent) + 0.5)
            marks.append(tag("line", x1=begin, x2=begin, y1=above, y2=y, class_="fork"))
        marks.append(tag("line", x1=begin, x2=at(item.length), y1=y, y2=y, class_="branch"))
        marks.append(tag("text", item.label, x=at(item.length), y=y + 4, dx=6))
    said = "; ".join(
        f"{item.label} leaves {branches[item.parent].label} at token {item.start}"
        for item in branches
        if item.parent is not None
    )
    height = _LANE_PX * len(rows)
    drawn = tag("svg", *marks, height=height, width="100%", role="img", aria_label=said)
    return tag("figure", drawn, tag("figcaption", caption), class_="chart forks")


def _path(points: Sequence[tuple[int, float]], x_at: _Place, y_at: _Place, class_: str) -> Html:
    steps = join((f"{x_at(s):.1f} {y_at(v):.1f}" for s, v in points), "L")
    return tag("path", d=f"M{steps}", class_=class_)


def _bounds(values: Sequence[float], unit: Unit) -> tuple[float, float]:
    if unit == "rate":
        return 0.0, max(1.0, *values)
    low, high = min(values), max(values)
    if low >= 0 and low < 0.5 * high:
        low = 0.0
    if high == low:
        return low - max(abs(low) * 0.1, 1e-3), high + max(abs(high) * 0.1, 1e-3)
    margin = 0.05 * (high - low)
    return (low if low == 0.0 else low - margin), high + margin


def _ticks(bottom: float, top: float) -> list[float]:
    raw = (top - bottom) / 4
    power = 10.0 ** math.floor(math.log10(raw))
    pace = next(power * step for step in (1, 2, 2.5, 5, 10) if power * step >= raw * 0.999)
    first = math.ceil(bottom / pace - 1e-9)
    return [pace * k for k in range(first, math.floor(top / pace + 1e-9) + 1)]


def _tick(value: float, unit: Unit) -> str:
    if unit == "rate":
        return f"{100 * value:.0f} %"
    return f"{value:.3g}".replace("-", MINUS)


def _running_mean(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    width = max(len(points) // 20, 5)
    out = []
    for index, (step, _) in enumerate(points):
        near = points[max(0, index - width // 2) : index + width // 2 + 1]
        out.append((step, sum(value for _, value in near) / len(near)))
    return out


def _thinned(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    every = max(1, math.ceil(len(points) / _MOST_POINTS))
    return [*points[::every], points[-1]]


def _spoken(title: str, rows: Sequence[Curve], unit: Unit) -> str:
    ends = "; ".join(
        f"{row.label} from {written(row.values[0], unit)} to {written(row.values[-1], unit)}" for row in rows
    )
    return f"{title}: {ends}"
