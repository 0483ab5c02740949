"""Result tables: every accuracy with its interval and the three reference lines beside it."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast, get_args

from evidcore_plugin_pages.jinja import part
from evidcore_plugin_pages.markup import Html, Unit, interval, number, tag
from evidcore_plugin_pages.record import Line

REFERENCE_LINES = {
    "uniform_chance": "uniform chance",
    "prior_only": "best blind rule",
    "perfect_perception": "perfect eyes",
}
_RATES = ("accuracy", "rate", *REFERENCE_LINES)
_POINTS = ("margin", "minus", "change")
_SCORES = ("f1", "auc", "dice")


def unit_of(metric: str) -> Unit:
    """Return how a metric is written, from its name."""
    if any(word in metric for word in _POINTS):
        return "points"
    if any(word in metric for word in _RATES):
        return "rate"
    return "score" if any(word in metric for word in _SCORES) else "plain"


def unit_of_row(row: Mapping[str, Any]) -> Unit:
    """Return how a row's figures are written: in the unit that it names, else by its metric's name."""
    named = row.get("unit")
    return cast(Unit, named) if named in get_args(Unit) else unit_of(str(row.get("metric", "")))


def is_accuracy(row: Mapping[str, Any]) -> bool:
    """Tell whether the three reference lines belong beside a row."""
    metric = str(row.get("metric", ""))
    return "accuracy" in metric and unit_of(metric) == "rate"


def is_detail(row: Mapping[str, Any]) -> bool:
    """Tell whether a row speaks of a part: of one finding, or one decile; its metric ends in `/<part>`."""
    return "/" in str(row.get("metric", ""))


def said(metric: str) -> str:
    """Return a metric as it reads on the page."""
    return metric.replace("_", " ")


def reference_lines(row: Mapping[str, Any], result: Line) -> dict[str, float]:
    """Return the reference lines of the questions that a row is about; empty where the run wrote none."""
    by_task: Mapping[str, Any] = result.get("reference_lines") or {}
    task = row.get("task") or row.get("name")
    results = by_task.get(str(task)) or {}
    return {name: float(results[name]) for name in REFERENCE_LINES if results.get(name) is not None}


def result_table(result: Line) -> Html:
    """Return one stage's rows as tables: the figures, what the reference lines are, details folded."""
    rows = with_tasks(result)
    main = [row for row in rows if not is_detail(row) and row.get("metric") not in REFERENCE_LINES]
    details = [row for row in rows if is_detail(row)]
    lines = [row for row in rows if row.get("metric") in REFERENCE_LINES]
    return part("result_table", _table(main, result), lines, REFERENCE_LINES, _table(details, result))


def with_tasks(result: Line) -> list[dict[str, Any]]:
    """Return the rows of a stage, each with the task whose questions it is about.

    An audit names its rows by condition; the task follows with the margin, once for each audited task.
    """
    rows: list[dict[str, Any]] = []
    block: list[dict[str, Any]] = []
    for row in result.get("rows", ()):
        block.append({"task": row.get("name"), **row})
        if row.get("metric") == "grounding_margin":
            rows += [{**item, "task": row.get("name")} for item in block]
            block = []
    return rows + block


def measured(result: Line) -> list[dict[str, Any]]:
    """Return the rows of `with_tasks` that hold a value."""
    return [row for row in with_tasks(result) if row.get("value") is not None]


def by_task(result: Line) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of `measured` by task."""
    results: dict[str, list[dict[str, Any]]] = {}
    for row in measured(result):
        results.setdefault(str(row["task"]), []).append(row)
    return results


def _table(rows: Sequence[Mapping[str, Any]], result: Line) -> dict[str, Any]:
    """Return what a table shows of rows: its cells as they are written, and which columns it needs."""
    lines = [reference_lines(row, result) if is_accuracy(row) and not is_detail(row) else {} for row in rows]
    keys = list(REFERENCE_LINES) if any(lines) else []
    names = [str(row.get("name", "")) for row in rows]
    cells = [
        {
            "name": name if name != before else "",
            "metric": said(str(row.get("metric", ""))),
            "value": number(row.get("value"), unit_of_row(row)),
            "interval": interval(row.get("low"), row.get("high"), unit_of_row(row)),
            "lines": [number(known[key], "rate") if key in known else "" for key in keys],
            "questions": number(row["questions"], "count") if row.get("questions") else "",
            "patients": number(row["patients"], "count") if row.get("patients") else "",
            "note": row.get("note") or "",
        }
        for row, known, name, before in zip(rows, lines, names, [None, *names], strict=False)
    ]
    notes = ("Note",) if any(row.get("note") for row in rows) else ()
    return {"rows": cells, "lines": [REFERENCE_LINES[key] for key in keys], "notes": notes}


def figures(found: Mapping[str, Any]) -> Html:
    """Return the figures that a stage ended with: numbers as facts, tables of numbers folded."""
    plain = [(said(key), _figure(value)) for key, value in found.items() if not isinstance(value, Mapping)]
    tables = [
        (said(key), [(name, _figure(item)) for name, item in value.items()])
        for key, value in found.items()
        if isinstance(value, Mapping)
    ]
    return part("figures", plain, tables)


def _figure(value: object) -> object:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return number(value) if is_number else tag("code", json.dumps(value))  # type: ignore[arg-type]
