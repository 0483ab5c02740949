"""Results rows as tables for a terminal: figures in percent or points, intervals, questions and patients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

Row = Mapping[str, Any]

_FRACTIONS = ("f1", "auc")  # written 0.87; everything else is a share or a difference of shares, in percent


def main_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that do not speak of a part: a single finding, a decile."""
    return [row for row in rows if "/" not in row["metric"]]


def table(title: str, rows: Sequence[Row]) -> Table:
    """Return rows as a table, in their order; a blank line parts different names."""
    made = Table(title=title, title_justify="left", pad_edge=False)
    for heading in ("", "metric"):
        made.add_column(heading)
    for heading in ("value", "95 % interval", "questions", "patients"):
        made.add_column(heading, justify="right")
    made.add_column("note", overflow="fold")
    last = None
    for row in rows:
        if last is not None and row["name"] != last:
            made.add_section()
        cells = [str(row["name"]) if row["name"] != last else "", row["metric"].replace("_", " ")]
        cells += [number(row["metric"], row["value"], row.get("unit")), _interval(row)]
        made.add_row(*cells, str(row["questions"]), str(row["patients"]), row.get("note") or "")
        last = row["name"]
    return made


def number(metric: str, value: float | None, unit: str | None = None) -> str:
    """Return a figure as it is written: percent, points for differences, three digits for F1 and AUC.

    Args:
        metric: tells the unit where none is given.
        value: the figure.
        unit: "rate", "points", "score" or "plain", as rows of metrics name it.
    """
    if value is None:
        return "–"  # noqa: RUF001  an en dash is what it is
    if is_fraction(metric, unit):
        return f"{value:.3f}"
    return f"{100 * value:+.1f}" if _is_difference(metric) else f"{100 * value:.1f} %"


def is_fraction(metric: str, unit: str | None = None) -> bool:
    """Tell whether a figure is written with three digits behind the point; others are in percent."""
    return unit in ("score", "plain") or (unit is None and any(word in metric for word in _FRACTIONS))


def _is_difference(metric: str) -> bool:
    return "margin" in metric or "minus" in metric or "change" in metric


def _interval(row: Row) -> str:
    if row["low"] is None or row["high"] is None:
        return ""
    low, high = (number(row["metric"], row[end], row.get("unit")) for end in ("low", "high"))
    return f"{low} … {high}"
