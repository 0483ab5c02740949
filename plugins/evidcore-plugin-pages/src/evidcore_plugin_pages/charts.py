"""Charts as inline SVG: intervals in lanes, curves over steps, trees. Places are computed here, not drawn."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from evidcore_plugin_pages.jinja import part
from evidcore_plugin_pages.markup import MINUS, Html, Unit, data_block, written

Array = npt.NDArray[np.float64]
_TEMPLATE = "charts.html"
_LANE_PX = 22
_MOST_POINTS = 400  # more cannot be told apart at this width


class Frame(NamedTuple):
    """The size of a chart and the edges of its area, in its own pixels."""

    width: int
    height: int
    left: int
    right: int
    top: int
    bottom: int


_CURVE = Frame(width=360, height=190, left=46, right=348, top=10, bottom=164)


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

    def at(value: float) -> str:
        return f"{100 * (min(max(value, start), stop) - start) / (stop - start):.2f}%"

    ticks = [start + (stop - start) * share for share in (0, 0.25, 0.5, 0.75, 1)]
    if unit in ("rate", "score", "points"):
        texts = [f"{100 * value:.0f}".replace("-", MINUS) for value in ticks]
        texts[-1] += " %" * (unit == "rate")
    else:
        texts = [written(value, unit) for value in ticks]
    has_zero = start < 0.0 < stop
    return part("lanes", rows, at, texts, has_zero, unit, caption, _LANE_PX, template=_TEMPLATE)


class Curve(NamedTuple):
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
        return part("no_curve", title, template=_TEMPLATE)
    first, last = min(min(row.steps) for row in rows), max(max(row.steps) for row in rows)
    bottom, top = _bounds(finite, unit)
    frame = _CURVE

    def placed(step: float, value: float) -> tuple[float, float]:
        x = frame.left + (frame.right - frame.left) * (step - first) / max(last - first, 1)
        return x, frame.top + (frame.bottom - frame.top) * (top - value) / (top - bottom)

    def path(steps: Array, values: Array) -> str:
        every = max(1, math.ceil(len(steps) / _MOST_POINTS))
        points = [*zip(steps, values, strict=True)]
        places = [placed(*point) for point in (*points[::every], *points[-1:] * (every > 1))]
        return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)

    drawn = []
    for number, row in enumerate(rows):
        steps, values = np.asarray(row.steps, dtype=float), np.asarray(row.values, dtype=float)
        steps, values = steps[np.isfinite(values)], values[np.isfinite(values)]
        paths = [("mean", path(steps, values))]
        if len(steps) > 30:
            around = np.ones(2 * (max(len(steps) // 20, 5) // 2) + 1)
            counts = np.convolve(np.ones_like(values), around, "same")
            means = np.convolve(values, around, "same") / counts
            paths = [("raw", paths[0][1]), ("mean", path(steps, means))]
        dot = placed(steps[0], values[0]) if len(steps) == 1 else None
        drawn.append({"label": row.label, "number": number, "paths": paths, "dot": dot})
    ticks = [(placed(first, value)[1], _tick(value, unit)) for value in _ticks(bottom, top)]
    label = f"step {last}" if first == last else last
    ends = [(placed(first, top)[0], f"step {first}"), (placed(last, top)[0], label)]
    said = "; ".join(
        f"{row.label} from {written(row.values[0], unit)} to {written(row.values[-1], unit)}" for row in rows
    )
    points = {
        "unit": unit,
        "first": first,
        "last": last,
        "area": [frame.left, frame.right, frame.width],
        "curves": [row._asdict() for row in rows],
    }
    block = data_block(points, class_="points")
    return part(
        "curves", title, note, f"{title}: {said}", frame, ticks, ends, drawn, block, template=_TEMPLATE
    )


class Branch(NamedTuple):
    """One answer of a tree: a line of tokens that leaves its parent's."""

    label: str
    length: int  # in tokens
    parent: int | None = None  # its number among the branches
    start: int = 0  # the first token that it does not share with its parent


def forks(branches: Sequence[Branch], caption: object) -> Html:
    """Draw answers over their tokens, each fork below its parent and joined to it where it leaves it."""
    order: list[int] = []

    def place(parent: int | None) -> None:
        for index, item in enumerate(branches):
            if item.parent == parent:
                order.append(index)
                place(index)

    place(None)
    longest = max(1, *(item.length for item in branches))

    def at(token: int) -> str:
        return f"{90 * min(token, longest) / longest:.2f}%"

    heights = {index: _LANE_PX * (row + 0.5) for row, index in enumerate(order)}
    rows = [
        {
            "label": item.label, "start": at(item.start), "stop": at(item.length), "y": heights[index],
            "above": None if item.parent is None else heights[item.parent],
        }
        for index, item in ((index, branches[index]) for index in order)
    ]  # fmt: skip
    said = "; ".join(
        f"{item.label} leaves {branches[item.parent].label} at token {item.start}"
        for item in branches
        if item.parent is not None
    )
    return part("forks", rows, _LANE_PX * len(rows), said, caption, template=_TEMPLATE)


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
    return f"{100 * value:.0f} %" if unit == "rate" else f"{value:.3g}".replace("-", MINUS)
