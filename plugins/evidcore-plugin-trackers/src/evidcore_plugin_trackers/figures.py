"""What a tracker is told of a stage's result: numbers by name, and no text."""

import math
from collections.abc import Iterator, Mapping
from typing import Any


def numbers(figures: Mapping[str, Any]) -> Iterator[tuple[str, float]]:  # texts may be a patient's
    """Yield the numbers of a stage's result: `name/metric` of its rows, and figures of its own."""
    for row in figures.get("rows") or ():
        if _is_number(row.get("value")):
            yield f"{row['name']}/{row['metric']}", float(row["value"])
    for name, value in figures.items():
        if _is_number(value):
            yield name, float(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
