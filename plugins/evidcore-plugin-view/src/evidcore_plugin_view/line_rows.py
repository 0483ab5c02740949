"""What the list shows of an answer and of a group of rollouts: ids, findings, the score, what went wrong."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Sequence

from evidcore_plugin_pages.durations import is_number

from evidcore.runs.read import findings_of
from evidcore_plugin_view.line_index import Line, Row


def answer_row(line: Line, headlines: Collection[str] = ()) -> Row:
    """Return the row of a line of `answers/<stage>.jsonl`.

    Args:
        line: an answer.
        headlines: names of the stage's headline metrics, one of which scores answers without a verdict.
    """
    correct = line.get("correct")
    return {
        "prompt": str(line.get("prompt_id", "")),
        "case": str(line.get("case_id", "")),
        "patient": line.get("patient"),
        "task": str(line.get("task", "")),
        "condition": str(line.get("condition", "own")),
        "findings": findings_of(line),
        "correct": None if correct is None else bool(correct),
        "score": score_of(line, headlines),
        "malformed": line.get("malformed") is not None,
    }


def group_row(line: Line) -> Row:
    """Return the row of a line of `rollouts/<stage>.jsonl`."""
    rollouts: Sequence[Line] = line.get("rollouts") or ()
    totals = [float(one["total"]) for one in rollouts if is_number(one.get("total"))]
    reference = line.get("reference") or {}
    return {
        "prompt": str(line.get("prompt_id", "")),
        "case": str(line.get("case_id", "")),
        "task": str(line.get("task", "")),
        "step": line.get("step"),
        "findings": findings_of(reference),
        "rollouts": len(rollouts),
        "mean": statistics.fmean(totals) if totals else None,
        "spread": statistics.pstdev(totals) if totals else None,
        "zeros": sum(total == 0 for total in totals),
        "malformed": sum(one.get("malformed") is not None for one in rollouts),
    }


def score_of(line: Line, headlines: Collection[str] = ()) -> float | None:
    """Return an answer's score: 1 or 0 where it is right or wrong, else its value or its headline figure."""
    if line.get("correct") is not None:
        return float(bool(line["correct"]))
    if is_number(line.get("value")):
        return float(line["value"])
    figures = line.get("figures") or {}
    return next((float(figures[name]) for name in sorted(headlines) if is_number(figures.get(name))), None)
