"""What the run found, at a glance: rows that results mark as headlines, and audits."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from evidcore.runs.read import Line, RunRecord
from evidcore_plugin_pages.charts import Lane, lanes
from evidcore_plugin_pages.markup import Html, join, tag
from evidcore_plugin_pages.tables import (
    REFERENCE_LINES,
    is_accuracy,
    reference_lines,
    said,
    unit_of_row,
    with_tasks,
)

Row = Mapping[str, Any]
_DECILE = re.compile(r"(?P<figure>.+)/decile (?P<number>\d\d)")


def by_place(rows: Sequence[Row]) -> Html | None:
    """Return a chart for each figure that is given by tenths of the reports; None where none is.

    Args:
        rows: of one stage, those with a value; a tenth's metric is called `<figure>/decile 01` and so on.
    """
    drawn: dict[tuple[str, str], list[Lane]] = {}
    for row in rows:
        if result := _DECILE.fullmatch(str(row.get("metric"))):
            last = 10 * int(result["number"])
            lane = Lane(
                label=f"{last - 10} to {last} % of the report", value=float(row["value"]),
                low=row.get("low"), high=row.get("high"),
            )  # fmt: skip
            drawn.setdefault((str(row.get("name")), result["figure"]), []).append(lane)
    charts = [
        lanes(
            marks, start=0.0, stop=1.0, unit="rate",
            caption=tag("span", f"{figure.replace('_', ' ').capitalize()} of {name}, by place."),
        )
        for (name, figure), marks in drawn.items()
    ]  # fmt: skip
    return join(charts) if charts else None


_TONES = {"own": "own", "other-patient": "other", "blank": "blank"}
_SCALES = {"rate": (0.0, 1.0), "score": (0.0, 1.0), "points": (-1.0, 1.0)}  # others: from 0 to what is there


def stage_title(record: RunRecord, stage: str) -> str:
    """Return a stage with what came before it: `05-evaluate, after grpo`."""
    number_, _, kind = stage.partition("-")
    measuring = {str(result.get("kind")) for result in record.results if not result.get("figures")}
    if kind not in measuring or not number_.isdigit():
        return stage
    kinds = [str(item.get("kind")) for item in record.recipe.get("stage", ())]
    trained = [k for k in kinds[: int(number_)] if k not in measuring]
    return f"{stage}, after {trained[-1]}" if trained else stage


def headline(record: RunRecord) -> Html:
    """Return what stages found, with reference lines beside accuracies; audits follow below."""
    blocks = []
    for result in record.results:
        if _is_audit(result):
            continue
        measured = _measured(result)
        rows = _headlines(measured)
        if rows:
            firsts = {row.get("name"): row.get("metric") for row in reversed(rows) if is_accuracy(row)}
            drawn = _charts(rows, result, _named, functools.partial(_tone, firsts))
            title = tag("h3", stage_title(record, str(result.get("stage", ""))))
            blocks.append(tag("div", title, *drawn, by_place(measured)))
    if not blocks:
        return tag("p", "No evaluation has finished yet.", class_="empty")
    return join([_sentence(record), tag("div", *blocks, class_="pair")])


def _tone(firsts: Mapping[Any, Any], row: Row) -> str:
    return "own" if firsts.get(row.get("name"), "") == row.get("metric") else "quiet"


def _headlines(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that are marked to be shown at a glance."""
    return [row for row in rows if row.get("headline")]


def _charts(
    rows: Sequence[Row],
    result: Line,
    label: Callable[[Row], object],
    tone: Callable[[Row], str],
    caption: str = "",
) -> list[Html]:
    """Draw rows, those of one unit on one scale."""
    drawn = []
    for unit in dict.fromkeys(map(unit_of_row, rows)):
        some = [row for row in rows if unit_of_row(row) == unit]
        ends = [
            float(row[end]) for row in some for end in ("value", "low", "high") if row.get(end) is not None
        ]
        start, stop = _SCALES.get(unit, (min(0.0, *ends), max(0.0, *ends) or 1.0))
        marks = [_lane(row, result, label(row), tone(row)) for row in some]
        said_ = caption or _line_key(some, result)
        drawn.append(lanes(marks, start=start, stop=stop, unit=unit, caption=said_))
    return drawn


def _sentence(record: RunRecord) -> Html:
    """Say the last audit's outcome in words, where there is one."""
    said_ = [
        tag("p", tag("i", task), ": ", str((result.get("verdict") or {}).get(task, "")), class_="lead")
        for result in [item for item in record.results if _is_audit(item)][-1:]
        for task in _by_task(result)
    ]
    nothing = "No grounding audit has run, so what the accuracy rests on is not known."
    return join(said_) if said_ else tag("p", nothing, class_="lead")


def _named(row: Row) -> Html:
    metric = tag("span", said(str(row.get("metric", ""))), class_="faint")
    return join([tag("span", row.get("name", "")), " ", metric])


def _lane(row: Row, result: Line, label: object, tone: str) -> Lane:
    return Lane(
        label=label,
        value=float(row["value"]),
        low=row.get("low"),
        high=row.get("high"),
        tone=tone,
        lines=reference_lines(row, result) if is_accuracy(row) else {},
    )


def _line_key(rows: Sequence[Row], result: Line) -> Html:
    """Explain the bars, or say why there are none, and the reference lines."""
    known = {name for row in rows for name in reference_lines(row, result)}
    keys = [
        tag("span", label, class_=f"line-key {name.replace('_', '-')}")
        for name, label in REFERENCE_LINES.items()
        if name in known
    ]
    if any(row.get("low") is not None for row in rows):
        bars = "Bars are 95 % intervals, resampled by patient. "
    else:
        bars = f"No intervals: {rows[0].get('note') or 'none were measured'}. "
    return join([bars, *keys])


def audit(record: RunRecord) -> Html:
    """Return the audits: what each showing of the same questions is worth, and what own volumes add to it."""
    blocks = [
        _audit(record, result, task, rows)
        for result in record.results
        if _is_audit(result)
        for task, rows in _by_task(result).items()
    ]
    if not blocks:
        return tag(
            "p",
            "No grounding audit has run. ",
            tag("code", f"evid audit policy {record.folder}"),
            " asks the same questions over blank, scrambled, altered and other patients' volumes.",
            class_="empty",
        )
    return join(blocks)


def _audit(record: RunRecord, result: Line, task: str, rows: Sequence[Row]) -> Html:
    conditions = [row for row in _headlines(rows) if row.get("condition")]
    conditions.sort(key=lambda row: float(row["value"]))  # a staircase: which showing earned what
    differences = [
        row
        for row in rows
        if unit_of_row(row) == "points" and not row.get("condition") and "/" not in str(row["metric"])
    ]
    caption = (
        "Differences in points. Where own minus the best that does not look covers 0: no sign that it looks."
    )
    drawn = [
        *_charts(conditions, result, lambda row: row.get("name", ""), _condition_tone),
        *_charts(differences, result, _difference, lambda row: "own", caption),
    ]
    verdict = (result.get("verdict") or {}).get(task)
    title = tag("h3", f"{stage_title(record, str(result.get('stage', '')))}: {task}")
    return tag("div", title, tag("p", verdict) if verdict else None, tag("div", *drawn, class_="pair"))


def _condition_tone(row: Row) -> str:
    return _TONES.get(str(row["condition"]), "quiet")


def _difference(row: Row) -> Html:
    note = tag("span", row["note"], class_="faint") if row.get("note") else ""
    return join([tag("span", said(str(row["metric"]))), " ", note])


def changes(record: RunRecord) -> Html:
    """Return what each evaluation changed against the earlier ones of the same questions, arms' too."""
    drawn = []
    rows = [row for result in _of_kind(record, "changes") for row in _measured(result)]
    for unit in dict.fromkeys(map(unit_of_row, rows)):
        some = [row for row in rows if unit_of_row(row) == unit]
        widest = max(abs(float(row[end] or 0.0)) for row in some for end in ("value", "low", "high")) or 1.0
        marks = [_lane(row, {}, _changed(row), "own") for row in some]
        caption = "Paired by question, 95 % intervals resampled by patient."
        drawn.append(lanes(marks, start=-widest, stop=widest, unit=unit, caption=caption))
    if not drawn:
        return tag("p", "No two evaluations asked the same questions.", class_="empty")
    return tag("div", *drawn, class_="pair")


def _changed(row: Row) -> Html:
    what = said(str(row["metric"]).removesuffix("_change"))
    return join([tag("span", row["name"]), " ", tag("span", f"{what}, {row['note']}", class_="faint")])


def _of_kind(record: RunRecord, kind: str) -> list[Line]:
    return [result for result in record.results if result.get("kind") == kind]


def _measured(result: Line) -> list[Row]:
    return [row for row in with_tasks(result) if row.get("value") is not None]


def _by_task(result: Line) -> dict[str, list[Row]]:
    results: dict[str, list[Row]] = {}
    for row in _measured(result):
        results.setdefault(str(row["task"]), []).append(row)
    return results


def _under(rows: Sequence[Row], condition: str) -> list[Row]:
    """Return the headlines of a condition, if any was measured."""
    return [row for row in _headlines(rows) if row.get("condition") == condition]


def _is_audit(result: Line) -> bool:
    """Tell whether a stage asked under several conditions: it gives a verdict."""
    return result.get("verdict") is not None
