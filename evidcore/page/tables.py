"""Result tables: every accuracy with its interval and the three reference lines beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evidcore.page.markup import Html, tag
from evidcore.page.numbers import Unit, interval, number
from evidcore.page.record import Line

REFERENCE_LINES = {
    "uniform_chance": "uniform chance",
    "prior_only": "prior only",
    "perfect_perception": "perfect eyes",
}
_RATES = ("accuracy", "rate", "format", "share", "chance", "ceiling", "well-formed", "well formed")
_POINTS = ("margin", "difference", "gain", "change", "moved")
_SCORES = ("f1", "auc", "dice", "iou", "score", "precision", "recall")


def unit_of(metric: str) -> Unit:
    """Return how a metric is written, from its name."""
    words = metric.lower().replace("_", "-")
    if any(word in words for word in _POINTS):
        return "points"
    if any(word in words for word in _RATES):
        return "rate"
    return "score" if any(word in words for word in _SCORES) else "plain"


def is_accuracy(row: Mapping[str, Any]) -> bool:
    """Tell whether the three reference lines belong beside a row."""
    return "accuracy" in str(row.get("metric", "")) and unit_of(str(row["metric"])) == "rate"


def reference_lines(row: Mapping[str, Any], result: Line) -> dict[str, float]:
    """Return the lines for a row: its own where it has some, otherwise its stage's."""
    found = row.get("reference_lines") or result.get("reference_lines") or {}
    return {name: float(found[name]) for name in REFERENCE_LINES if found.get(name) is not None}


def result_table(result: Line) -> Html:
    """Return one stage's rows as a table."""
    rows: Sequence[Mapping[str, Any]] = result.get("rows", [])
    if not rows:
        return tag("p", "This stage wrote no figures.", class_="empty")
    with_lines = any(is_accuracy(row) and reference_lines(row, result) for row in rows)
    with_notes = any(row.get("note") for row in rows)
    heads = [
        tag("th", "What", scope="col"),
        tag("th", "Metric", scope="col"),
        tag("th", "Value", scope="col", class_="num"),
        tag("th", "95 % interval", scope="col", class_="num"),
    ]
    if with_lines:
        heads += [tag("th", label, scope="col", class_="num line-head") for label in REFERENCE_LINES.values()]
    heads += [
        tag("th", "Questions", scope="col", class_="num"),
        tag("th", "Patients", scope="col", class_="num"),
    ]
    if with_notes:
        heads.append(tag("th", "Note", scope="col"))
    body = []
    previous = None
    for row in rows:
        name = str(row.get("name", ""))
        body.append(_row(row, result, name if name != previous else "", with_lines, with_notes))
        previous = name
    return tag(
        "div",
        tag("table", tag("thead", tag("tr", *heads)), tag("tbody", *body)),
        class_="scroll",
    )


def _row(row: Mapping[str, Any], result: Line, name: str, with_lines: bool, with_notes: bool) -> Html:
    metric = str(row.get("metric", ""))
    unit = unit_of(metric)
    cells = [
        tag("th", name, scope="row"),
        tag("td", metric),
        tag("td", number(row.get("value"), unit), class_="num strong"),
        tag("td", interval(row.get("low"), row.get("high"), unit), class_="num"),
    ]
    if with_lines:
        lines = reference_lines(row, result) if is_accuracy(row) else {}
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


def facts(pairs: Sequence[tuple[str, object]]) -> Html:
    """Return names and values as a definition list; a value may be text or markup."""
    return tag(
        "dl",
        *(tag("div", tag("dt", name), tag("dd", value)) for name, value in pairs),
        class_="facts",
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
