"""How a figure changes with the distance from a prompt, as inline SVG: a line for each row."""

import dataclasses
from collections.abc import Sequence

from evidcore_plugin_pages.charts import Frame
from evidcore_plugin_pages.jinja import part
from evidcore_plugin_pages.markup import Html, Unit, written

_FRAME = Frame(width=360, height=190, left=46, right=348, top=10, bottom=150)
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
    centres = [
        _FRAME.left + (_FRAME.right - _FRAME.left) * (place + 0.5) / len(distances)
        for place in range(len(distances))
    ]

    def y_at(value: float) -> float:
        return _FRAME.bottom - (_FRAME.bottom - _FRAME.top) * min(max(value / ceiling, 0.0), 1.0)

    lines, spoken = [], []
    for number, row in enumerate(rows):
        aside = _SPREAD * (number - (len(rows) - 1) / 2)
        known = [(place, point) for place, point in enumerate(row.points) if point is not None]
        said = [f"{written(value, unit)} at {distances[place]}" for place, (value, _, _) in known]
        dots = [
            {"x": centres[place] + aside, "y": y_at(value), "said": text,
             "ends": None if low is None or high is None else (y_at(low), y_at(high))}
            for (place, (value, low, high)), text in zip(known, said, strict=True)
        ]  # fmt: skip
        lines.append({"label": row.label, "dots": dots})
        spoken += [f"{row.label} from {said[0]} to {said[-1]}"] if said else []
    quarters = [ceiling * quarter / 4 for quarter in range(5)]
    ticks = [
        (y_at(value), f"{100 * value:.0f} %" if unit == "rate" else f"{value:.3g}") for value in quarters
    ]
    places = [*zip(centres, distances, strict=True)]
    label = f"{title}: {'; '.join(spoken)}"
    return part("falls", title, caption, label, _FRAME, ticks, places, axis, lines, template="charts.html")
