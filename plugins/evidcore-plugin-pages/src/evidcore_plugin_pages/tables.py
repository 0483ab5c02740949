"""Result tables: every accuracy with its interval and the three reference lines beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast, get_args

from evidcore.runs.read import Line
from evidcore_plugin_pages.markup import Html, Unit, interval, join, number, tag

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
    found = by_task.get(str(task)) or {}
    return {name: float(found[name]) for name in REFERENCE_LINES if found.get(name) is not None}


def result_table(result: Line) -> Html:
    """Return one stage's rows as tables: the figures, what the reference lines are, details folded."""
    rows = with_tasks(result)
    main = [row for row in rows if not is_detail(row) and row.get("metric") not in REFERENCE_LINES]
    folded = [row for row in rows if is_detail(row)]
    lines = [row for row in rows if row.get("metric") in REFERENCE_LINES]
    pieces: list[Html] = [_table(main, result)] if main else []
    if lines:
        pieces.append(tag("p", "Reference lines. ", join(map(_line_note, lines), " "), class_="faint small"))
    if folded:
        summary = tag("summary", f"In detail ({len(folded)} rows)")
        pieces.append(tag("details", summary, _table(folded, result)))
    return join(pieces)


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


def _line_note(row: Mapping[str, Any]) -> Html:
    label = REFERENCE_LINES[str(row["metric"])]
    pieces = [f"{row.get('name')}, {label}: ", number(row.get("value"), "rate")]
    if row.get("low") is not None:
        pieces += [" (", interval(row["low"], row.get("high"), "rate"), ")"]
    return tag("span", *pieces, f" {row['note']}." if row.get("note") else ".")


def _table(rows: Sequence[Mapping[str, Any]], result: Line) -> Html:
    with_lines = any(is_accuracy(row) and not is_detail(row) and reference_lines(row, result) for row in rows)
    with_notes = any(row.get("note") for row in rows)
    heads = [tag("th", label, scope="col") for label in ("What", "Metric")]
    lines = REFERENCE_LINES.values() if with_lines else ()
    numbers = ("Value", "95 % interval", *lines, "Questions", "Patients")
    heads += [tag("th", label, scope="col", class_="num") for label in numbers]
    if with_notes:
        heads.append(tag("th", "Note", scope="col"))
    names = [str(row.get("name", "")) for row in rows]
    body = [
        _row(row, result, name if name != before else "", with_lines, with_notes)
        for row, name, before in zip(rows, names, [None, *names], strict=False)
    ]
    table = tag("table", tag("thead", tag("tr", *heads)), tag("tbody", *body))
    return tag("div", table, class_="scroll", tabindex="0", role="region", aria_label="Figures")


def _row(row: Mapping[str, Any], result: Line, name: str, with_lines: bool, with_notes: bool) -> Html:
    metric = str(row.get("metric", ""))
    unit = unit_of_row(row)
    cells = [
        tag("th", name, scope="row"),
        tag("td", said(metric)),
        tag("td", number(row.get("value"), unit), class_="num strong"),
        tag("td", interval(row.get("low"), row.get("high"), unit), class_="num"),
    ]
    if with_lines:
        lines = reference_lines(row, result) if is_accuracy(row) and not is_detail(row) else {}
        cells += [
            tag("td", number(lines[key], "rate") if key in lines else "", class_="num faint")
            for key in REFERENCE_LINES
        ]
    cells += [
        tag("td", number(row["questions"], "count") if row.get("questions") else "", class_="num faint"),
        tag("td", number(row["patients"], "count") if row.get("patients") else "", class_="num faint"),
    ]
    if with_notes:
        cells.append(tag("td", row.get("note") or "", class_="note"))
    return tag("tr", *cells, class_="first" if name else None)


def figures(found: Mapping[str, Any]) -> Html:
    """Return the figures that a stage ended with: numbers as facts, tables of numbers folded."""
    plain = [(said(key), _figure(value)) for key, value in found.items() if not isinstance(value, Mapping)]
    folded = [
        tag(
            "details",
            tag("summary", said(key)),
            facts([(name, _figure(item)) for name, item in value.items()]),
        )
        for key, value in found.items()
        if isinstance(value, Mapping)
    ]
    return join([facts(plain) if plain else "", *folded])


def _figure(value: object) -> object:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return number(value) if is_number else tag("code", json.dumps(value))  # type: ignore[arg-type]


def facts(pairs: Sequence[tuple[str, object]]) -> Html:
    """Return names and values as a definition list; a value may be text or markup."""
    return tag(
        "dl", *(tag("div", tag("dt", name), tag("dd", value)) for name, value in pairs), class_="facts"
    )


def tree(value: Any) -> Html:
    """Return nested tables and lists, such as a lock file, as nested definition lists."""
    if isinstance(value, Mapping):
        return tag(
            "dl",
            *(tag("div", tag("dt", key), tag("dd", tree(item))) for key, item in value.items()),
            class_="tree",
        )
    if isinstance(value, list):
        if all(not isinstance(item, Mapping | list) for item in value):
            return tag("span", ", ".join(str(item) for item in value))
        return tag("ul", *(tag("li", tree(item)) for item in value))
    return tag("code", str(value).lower() if isinstance(value, bool) else value)
