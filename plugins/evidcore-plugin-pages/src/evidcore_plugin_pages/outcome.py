"""What the run found, at a glance: rows that results mark as headlines, and audits."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from evidcore_plugin_pages import tables
from evidcore_plugin_pages.charts import Lane, lanes
from evidcore_plugin_pages.jinja import part
from evidcore_plugin_pages.markup import Html, join
from evidcore_plugin_pages.record import Line, RunRecord

Row = Mapping[str, Any]
_Mark = tuple[Row, object, str]  # a row, its label and its colour class
_TEMPLATE = "outcome.html"
_DECILE = re.compile(r"(?P<figure>.+)/decile (?P<number>\d\d)")
_TONES = {"own": "own", "other-patient": "other", "blank": "blank"}
_SCALES = {"rate": (0.0, 1.0), "score": (0.0, 1.0), "points": (-1.0, 1.0)}  # others: from 0 to what is there


def headline(record: RunRecord) -> Html:
    """Return what stages found, with reference lines beside accuracies; audits follow below."""
    blocks, audits = [], [result for result in record.results if _is_audit(result)]
    for result in record.results:
        measured = tables.measured(result)
        rows = [row for row in measured if row.get("headline")]
        if rows and not _is_audit(result):
            firsts = {row.get("name"): row.get("metric") for row in reversed(rows) if tables.is_accuracy(row)}
            tones = [
                "own" if firsts.get(row.get("name"), "") == row.get("metric") else "quiet" for row in rows
            ]
            labels = [_label(row.get("name", ""), tables.said(str(row.get("metric", "")))) for row in rows]
            charts = _charts([*zip(rows, labels, tones, strict=True)], result)
            title = stage_title(record, str(result.get("stage", "")))
            blocks.append((title, join([charts, by_place(measured) or ""])))
    if not blocks:
        return part("empty", "No evaluation has finished yet.")
    verdicts = [
        (task, audit["verdict"].get(task, "")) for audit in audits[-1:] for task in tables.by_task(audit)
    ]
    return part("headline", verdicts, blocks, template=_TEMPLATE)


def by_place(rows: Sequence[Row]) -> Html | None:
    """Return a chart for each figure that is given by tenths of the reports; None where none is.

    Args:
        rows: of one stage, those with a value; a tenth's metric is called `<figure>/decile 01` and so on.
    """
    drawn: dict[tuple[str, str], list[Lane]] = {}
    for row in rows:
        if result := _DECILE.fullmatch(str(row.get("metric"))):
            last = 10 * int(result["number"])
            lane = _lane(row, {}, f"{last - 10} to {last} % of the report", "own")
            drawn.setdefault((str(row.get("name")), result["figure"]), []).append(lane)
    charts = []
    for (name, figure), marks in drawn.items():
        caption = f"{tables.said(figure).capitalize()} of {name}, by place."
        charts.append(lanes(marks, start=0.0, stop=1.0, unit="rate", caption=caption))
    return join(charts) if charts else None


def audit(record: RunRecord) -> Html:
    """Return the audits: what each showing of the same questions is worth, and what own volumes add to it."""
    caption = (
        "Differences in points. Where own minus the best that does not look covers 0: no sign that it looks."
    )
    blocks = []
    for result in filter(_is_audit, record.results):
        for task, rows in tables.by_task(result).items():
            showings, gains = list[_Mark](), list[_Mark]()
            for row in sorted(rows, key=lambda row: float(row["value"])):  # a staircase: what earned what
                if row.get("headline") and row.get("condition"):
                    showings.append((row, row.get("name", ""), _TONES.get(str(row["condition"]), "quiet")))
            for row in rows:
                metric = str(row["metric"])
                if tables.unit_of_row(row) == "points" and not row.get("condition") and "/" not in metric:
                    gains.append((row, _label(tables.said(metric), row.get("note")), "own"))
            charts = join([_charts(showings, result), _charts(gains, result, caption)])
            title = f"{stage_title(record, str(result.get('stage', '')))}: {task}"
            blocks.append((title, result["verdict"].get(task), charts))
    return part("audits", blocks, record.folder, template=_TEMPLATE)


def changes(record: RunRecord) -> Html:
    """Return what each evaluation changed against the earlier ones of the same questions, arms' too."""
    marks: list[_Mark] = []
    for result in record.results:
        for row in tables.measured(result) if result.get("kind") == "changes" else ():
            metric = tables.said(str(row["metric"]).removesuffix("_change"))
            marks.append((row, _label(row["name"], f"{metric}, {row.get('note')}"), "own"))
    caption = "Paired by question, 95 % intervals resampled by patient."
    if not marks:
        return part("empty", "No two evaluations asked the same questions.")
    return Html('<div class="pair">{}</div>').format(_charts(marks, {}, caption, zero_in_the_middle=True))


def stage_title(record: RunRecord, stage: str) -> str:
    """Return a stage with what came before it: `05-evaluate, after grpo`."""
    number_, _, kind = stage.partition("-")
    measuring = {str(result.get("kind")) for result in record.results if not result.get("figures")}
    if kind not in measuring or not number_.isdigit():
        return stage
    kinds = [str(item.get("kind")) for item in record.recipe.get("stage", ())]
    trained = [k for k in kinds[: int(number_)] if k not in measuring]
    return f"{stage}, after {trained[-1]}" if trained else stage


def _charts(
    marks: Sequence[_Mark], result: Line, caption: str = "", *, zero_in_the_middle: bool = False
) -> Html:
    """Draw rows, those of one unit on one scale."""
    drawn = []
    for unit in dict.fromkeys(tables.unit_of_row(row) for row, *_ in marks):
        some = [mark for mark in marks if tables.unit_of_row(mark[0]) == unit]
        rows = [row for row, *_ in some]
        known = [row.get(end) for row in rows for end in ("value", "low", "high")]
        ends = [float(end) for end in known if end is not None]
        start, stop = _SCALES.get(unit, (min(0.0, *ends), max(0.0, *ends) or 1.0))
        if zero_in_the_middle:
            stop = max(map(abs, ends)) or 1.0
            start = -stop
        shown = [_lane(row, result, label, tone) for row, label, tone in some]
        key = caption or _line_key(rows, result)
        drawn.append(lanes(shown, start=start, stop=stop, unit=unit, caption=key))
    return join(drawn)


def _lane(row: Row, result: Line, label: object, tone: str) -> Lane:
    lines = tables.reference_lines(row, result) if tables.is_accuracy(row) else {}
    value, low, high = float(row["value"]), row.get("low"), row.get("high")
    return Lane(label=label, value=value, low=low, high=high, tone=tone, lines=lines)


def _label(name: object, more: object) -> Html:
    return part("label", name, more, template=_TEMPLATE)


def _line_key(rows: Sequence[Row], result: Line) -> Html:
    """Explain the bars, or say why there are none, and the reference lines."""
    known = {name for row in rows for name in tables.reference_lines(row, result)}
    bars = "Bars are 95 % intervals, resampled by patient. "
    if all(row.get("low") is None for row in rows):
        bars = f"No intervals: {rows[0].get('note') or 'none were measured'}. "
    lines = [(name, label) for name, label in tables.REFERENCE_LINES.items() if name in known]
    return part("key", bars, lines, template=_TEMPLATE)


def _is_audit(result: Line) -> bool:
    """Tell whether a stage asked under several conditions: it gives a verdict."""
    return result.get("verdict") is not None
