"""What reports recall of abnormal sentences, by the sentence's place in its reference report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evidcore.page.charts import Lane, lanes
from evidcore.page.markup import Html, join, tag
from evidcore.page.numbers import interval, number

Row = Mapping[str, Any]
_DECILE = "abnormal_recall/decile "
_DIFFERENCE = "abnormal_recall_late_minus_early"


def recall_by_place(rows: Sequence[Row]) -> Html | None:
    """Return a chart for each task whose reports were measured so; None where none was.

    Args:
        rows: of one stage, those with a value.
    """
    drawn = []
    for name in dict.fromkeys(str(row.get("name")) for row in rows):
        own = [row for row in rows if str(row.get("name")) == name]
        deciles = [row for row in own if str(row.get("metric")).startswith(_DECILE)]
        if not deciles:
            continue
        marks = [
            Lane(
                label=_label(str(row["metric"])),
                value=float(row["value"]),
                low=row.get("low"),
                high=row.get("high"),
            )
            for row in deciles
        ]
        late = next((row for row in own if row.get("metric") == _DIFFERENCE), None)
        drawn.append(lanes(marks, start=0.0, stop=1.0, unit="rate", caption=_caption(name, late)))
    return join(drawn) if drawn else None


def _label(metric: str) -> str:
    decile = int(metric.removeprefix(_DECILE))
    return f"{10 * (decile - 1)} to {10 * decile} % of the report"


def _caption(name: str, late: Row | None) -> Html:
    said = f"Abnormal sentences of the reference whose findings the reports of {name} affirm, by their place."
    if late is None:
        return tag("span", said)
    pieces = [said, " Second half minus first: ", number(late["value"], "points"), " points"]
    if late.get("low") is not None:
        pieces += [" (", interval(late["low"], late.get("high"), "points"), ")"]
    return tag("span", *pieces, ".")
