"""What an audit's conditions scored, step by step, with the best rules that do not look among them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from evidcore_plugin_pages.tables import unit_of_row, with_tasks

Row = Mapping[str, Any]
OWN = "own"


def staircases(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the steps of each task that an audit asked, lowest first; empty for other stages.

    A step is a condition of the audit. A rule that does not look is one too: results hold own volumes minus
    the rule on the same questions, so the rule's figure follows from it, and its interval is that of the row
    that holds this figure. Each step has the difference to own volumes, `above`, where it was measured.

    Args:
        result: of `results/<stage>.json`.
    """
    by_task: dict[str, list[Row]] = {}
    for row in with_tasks(result):
        if row.get("value") is not None:
            by_task.setdefault(str(row["task"]), []).append(row)
    results = []
    for task, rows in by_task.items():
        levels = {str(row["condition"]): row for row in rows if row.get("condition") and row.get("headline")}
        if OWN not in levels:
            continue
        differences = {
            str(row["against"]): row
            for row in rows
            if row.get("against") and "/" not in str(row["metric"]) and row["metric"] != "own_minus_blind"
        }
        others = [row for row in rows if not row.get("condition") and not row.get("against")]
        steps: list[dict[str, Any]] = [
            _step(name, row, differences.get(name)) for name, row in levels.items()
        ]
        steps += [
            _rule(name, float(levels[OWN]["value"]), row, others)
            for name, row in differences.items()
            if name not in levels
        ]
        steps.sort(key=lambda step: float(step["value"]))
        results.append({
            "task": task,
            "metric": str(levels[OWN]["metric"]),
            "unit": unit_of_row(levels[OWN]),
            "verdict": str((result.get("verdict") or {}).get(task, "")),
            "steps": steps,
        })
    return results


def _step(condition: str, row: Row, difference: Row | None) -> dict[str, Any]:
    return {
        "name": str(row["name"]),
        "condition": condition,
        "note": row.get("note") or "",
        **_interval(row),
        "above": None if difference is None else _interval(difference),
    }


def _rule(name: str, own: float, difference: Row, others: Sequence[Row]) -> dict[str, Any]:
    """Return the step of a rule that does not look."""
    value = own - float(difference["value"])
    level = next((row for row in others if math.isclose(float(row["value"]), value, abs_tol=1e-9)), None)
    interval = {"value": value, "low": None, "high": None} if level is None else _interval(level)
    said = str(difference.get("note") or name).partition(";")[0]
    return {
        "name": said.rpartition("own minus ")[2],
        "condition": None,
        "note": "" if level is None else str(level.get("note") or ""),
        **interval,
        "above": _interval(difference),
    }


def _interval(row: Row) -> dict[str, Any]:
    return {name: row.get(name) for name in ("value", "low", "high")}
