"""Two audits of the same questions side by side: as figures, as lines."""

from collections.abc import Mapping
from typing import Any

from evidcore_plugin_tour.shipped import TASK

Result = Mapping[str, Any]
SHOWINGS = {  # condition -> what its line is called
    "own": "own scan",
    "other-patient": "another patient's scan",
    "blank": "blank volume",
    "twin": "without what is asked",
}
REFERENCES = {"prior_only": "best blind rule", "uniform_chance": "uniform chance"}
DIFFERENCES = {
    "own_minus_blind_rule": "own minus best blind rule",
    "own_minus_blind": "own minus the best that does not look",
}
LINES = SHOWINGS | REFERENCES | DIFFERENCES


def figures(result: Result) -> dict[str, Any]:
    """Return a model's accuracies by condition, the reference lines, its margins and its verdict."""
    rows = result["rows"]
    shown = {row["condition"]: row for row in rows if row.get("headline") and row.get("condition")}
    known = shown | {row["metric"]: row for row in rows if row["name"] == TASK}
    told = ("value", "low", "high", "questions", "patients")
    of_lines = {name: {key: known[name][key] for key in told} for name in LINES}
    return {**of_lines, "verdict": result["verdict"][TASK]}


def ending(results: Mapping[str, Result]) -> list[str]:
    """Return a table with a column for each model, and a sentence about each."""
    matches = {name: figures(result) for name, result in results.items()}
    own = next(iter(matches.values()))["own"]
    lines = [_line(f"{own['questions']} questions, {own['patients']} phantoms, %", list(matches))]
    for name, called in LINES.items():
        sign = "+" if name in DIFFERENCES else ""
        lines.append(_line(called, [_percent(item[name], sign) for item in matches.values()]))
    return lines + [f"{name}: {first_sentence(item['verdict'])}" for name, item in matches.items()]


def _line(title: str, cells: list[str]) -> str:
    return f"{title:38}" + "".join(f"{cell:24}" for cell in cells).rstrip()


def _percent(row: Mapping[str, Any], sign: str) -> str:
    value, low, high = (row[key] for key in ("value", "low", "high"))
    if value is None:
        return "not measured"
    spread = "" if low is None else f" ({100 * low:{sign}.1f} to {100 * high:{sign}.1f})"
    return f"{100 * value:{sign}.1f}{spread}"


def first_sentence(text: str) -> str:
    """Return a text up to its first full stop before a space."""
    return f"{text.partition('. ')[0].rstrip('.')}."
