"""The audits of several runs in one table and on one page, each with what pins it."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from evidcore_plugin_pages.jinja import page
from evidcore_plugin_pages.outcome import audit
from evidcore_plugin_pages.record import RunRecord, read_head

from evidcore.cache import key_of, write_atomically
from evidcore.cli.summary import number
from evidcore.errors import RunError
from evidcore.runs.read import lines

FIGURES = {  # a metric -> its column
    "own": "own",
    "own_minus_blind": "own minus the best that does not look",
    "own_minus_twin": "own minus twins",
    "other_patient_minus": "another patient's minus the best blind rule",
}
_MEASURING = ("audit/", "condition/", "evaluation/", "task/")  # components whose code makes the figures
_KEYS = ("value", "low", "high", "unit", "questions", "patients")


def records_of(places: Iterable[Path]) -> list[RunRecord]:
    """Return the audited runs among these folders and in them, in the order given, each once."""
    folders = [
        path.parent
        for place in places
        for depth in (".", "*", "*/*")
        for path in sorted(place.glob(f"{depth}/lock.toml"))
    ]
    records = [read_head(folder) for folder in dict.fromkeys(folders)]
    audited = [record for record in records if any(result.get("verdict") for result in record.results)]
    if not audited:
        named = ", ".join(map(str, places))
        raise RunError(f"{named}: none of {len(records)} runs has an audit. Give runs with a stage `audit`.")
    return audited


def ledger(records: Iterable[RunRecord]) -> list[dict[str, Any]]:
    """Return a row for each task of each audit: figures by the names in FIGURES, verdict, and pins.

    `questions` and `code` are hashes: rows with the same `questions` answered the same ones about the same
    data, those with the same `code` were measured by the same one.
    """
    rows = []
    for record in records:
        data = {name: table.get("fingerprint") for name, table in record.lock.get("dataset", {}).items()}
        code = [
            table.get("code")
            for table in record.lock.get("package", {}).values()
            if any(name.startswith(_MEASURING) for name in table.get("components", {}))
        ]
        for result in record.results:
            for task, verdict in (result.get("verdict") or {}).items():
                answers = lines(record.folder / "answers" / f"{result['stage']}.jsonl")
                asked = sorted({line["prompt_id"] for line in answers if line["task"] == task})
                rows.append({
                    "run": str(record.folder), "recipe": record.name, "stage": result["stage"], "task": task,
                    "figures": _figures(result["rows"], task), "verdict": verdict,
                    "questions": key_of([data, asked])[:8], "code": key_of(code)[:8],
                })  # fmt: skip
    return rows


def _figures(rows: Iterable[Mapping[str, Any]], task: str) -> dict[str, dict[str, Any]]:
    """Return what an audit found of a task, by the names in FIGURES."""
    known: dict[str, dict[str, Any]] = {}
    for row in rows:
        metric = "other_patient_minus" if row["metric"].startswith("other_patient_minus") else row["metric"]
        if row.get("headline") and row.get("condition") == "own" and row.get("task") == task:
            metric = "own"
        elif row["name"] != task:
            continue
        if metric in FIGURES:
            known[metric] = {key: row.get(key) for key in _KEYS}
    return known


def written(row: Mapping[str, Any], metric: str) -> str:
    """Return a figure of a row with its interval, as it is written."""
    figure = row["figures"].get(metric)
    if figure is None or figure["value"] is None:
        return "-"
    low, high = (number(metric, figure[end], figure["unit"]).removesuffix(" %") for end in ("low", "high"))
    spread = "" if figure["low"] is None else f" ({low} to {high})"
    return f"{number(metric, figure['value'], figure['unit'])}{spread}"


def notes(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return why rows may not be comparable."""
    counts = {what: len({row[what] for row in rows}) for what in ("questions", "code")}
    return [
        f"{count} different {what}: compare rows of the same hash alone."
        for what, count in counts.items()
        if count > 1
    ]


def write_ledger(target: Path, records: Sequence[RunRecord]) -> None:
    """Write the table, and each run's audit and lock with a link to its own page, as a page."""
    rows = ledger(records)
    pages = [os.path.relpath(record.folder / "page" / "index.html", target.parent) for record in records]
    text = page(
        "evidcore_plugin_audit", "ledger.html", title="Audits", kicker="audits", heads=FIGURES.values(),
        rows=[(row, [written(row, metric) for metric in FIGURES]) for row in rows], notes=notes(rows),
        blocks=[(record, link, audit(record)) for record, link in zip(records, pages, strict=True)],
        phantoms=sorted({name for record in records for name in record.phantom_datasets()}),
    )  # fmt: skip
    write_atomically(target, text.encode(), or_else="name another file")
