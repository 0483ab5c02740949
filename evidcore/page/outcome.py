"""What the run found, at a glance: accuracies before and after, the audit, the training controls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evidcore.page.charts import Lane, lanes
from evidcore.page.markup import Html, join, tag
from evidcore.page.numbers import interval, number
from evidcore.page.record import Line, RunRecord
from evidcore.page.tables import REFERENCE_LINES, is_accuracy, reference_lines, said, unit_of

_TONES = {"own": "own", "other-patient": "other", "blank": "blank"}
_AT_A_GLANCE = (
    "strict_accuracy",
    "accuracy_given_valid_format",
    "log_likelihood_accuracy",
    "verdict_log_likelihood_accuracy",
    "format_rate",
)


def stage_title(record: RunRecord, stage: str) -> str:
    """Return a stage with what came before it: `05-evaluate, after grpo`."""
    number_, _, kind = stage.partition("-")
    if kind not in ("evaluate", "audit") or not number_.isdigit():
        return stage
    kinds = [str(item.get("kind")) for item in record.recipe.get("stage", ())]
    trained = [k for k in kinds[: int(number_)] if k not in ("evaluate", "audit")]
    return f"{stage}, after {trained[-1]}" if trained else stage


def headline(record: RunRecord) -> Html:
    """Return every accuracy of the run against its reference lines, stage by stage."""
    blocks = []
    for result in _of_kind(record, "evaluate"):
        rows = [row for row in _measured(result) if row.get("metric") in _AT_A_GLANCE]
        if rows:
            blocks.append(
                tag(
                    "div",
                    tag("h3", stage_title(record, str(result.get("stage", "")))),
                    lanes(
                        [_lane(row, result, _named(row), _tone(row)) for row in rows],
                        start=0.0,
                        stop=1.0,
                        unit="rate",
                        caption=_line_key(rows, result),
                    ),
                )
            )
    if not blocks:
        return tag("p", "No evaluation has finished yet.", class_="empty")
    return join([_sentence(record), tag("div", *blocks, class_="pair")])


def _sentence(record: RunRecord) -> Html:
    """Say the last audit's outcome in words, where there is one."""
    for result in _of_kind(record, "audit")[::-1]:
        rows = _measured(result)
        own, other = (_in_condition(rows, condition) for condition in ("own", "other-patient"))
        margin = next((row for row in rows if row.get("metric") == "grounding_margin"), None)
        if own is not None and other is not None and margin is not None:
            return tag(
                "p",
                tag("b", number(own["value"], "rate")), " right on the cases' own volumes, ",
                tag("b", number(other["value"], "rate")), " on another patient's: a grounding margin of ",
                tag("b", number(margin["value"], "points")), " points (",
                interval(margin.get("low"), margin.get("high"), "points"), ").",
                class_="lead",
            )  # fmt: skip
    return tag("p", "No grounding audit has run, so what the accuracy rests on is not known.", class_="lead")


def _tone(row: Mapping[str, Any]) -> str:
    return "own" if row.get("metric") == "strict_accuracy" else "quiet"


def _named(row: Mapping[str, Any]) -> Html:
    metric = tag("span", said(str(row.get("metric", ""))), class_="faint")
    return join([tag("span", row.get("name", "")), " ", metric])


def _lane(row: Mapping[str, Any], result: Line, label: object, tone: str) -> Lane:
    return Lane(
        label=label,
        value=float(row["value"]),
        low=row.get("low"),
        high=row.get("high"),
        tone=tone,
        lines=reference_lines(row, result) if is_accuracy(row) else {},
    )


def _line_key(rows: Sequence[Mapping[str, Any]], result: Line) -> Html:
    known = {name for row in rows for name in reference_lines(row, result)}
    keys = [
        tag("span", label, class_=f"line-key {name.replace('_', '-')}")
        for name, label in REFERENCE_LINES.items()
        if name in known
    ]
    return join(["Bars are 95 % intervals, resampled by patient. ", *keys])


def audit(record: RunRecord) -> Html:
    """Return the grounding audit: the same policy on its own, another patient's and blank volumes."""
    blocks = [_audit(record, result) for result in _of_kind(record, "audit") if result.get("rows")]
    if not blocks:
        return tag(
            "p",
            "No grounding audit has run. ",
            tag("code", f"evid audit policy {record.folder}"),
            " asks the same questions over another patient's volumes and over blank ones.",
            class_="empty",
        )
    return join(blocks)


def _audit(record: RunRecord, result: Line) -> Html:
    rows = _measured(result)
    conditions = [row for row in rows if row.get("metric") == "strict_accuracy" and row.get("condition")]
    differences = [row for row in rows if unit_of(str(row.get("metric"))) == "points"]
    drawn = []
    if conditions:
        accuracies = [
            _lane(row, result, row.get("name", ""), _TONES.get(str(row["condition"]), "quiet"))
            for row in conditions
        ]
        key = _line_key(conditions, result)
        drawn.append(lanes(accuracies, start=0.0, stop=1.0, unit="rate", caption=key))
    if differences:
        caption = (
            "Differences of accuracies in points. A margin whose interval covers 0: no sign that it looks."
        )
        points = [_lane(row, result, _difference(row), "own") for row in differences]
        drawn.append(lanes(points, start=-1.0, stop=1.0, unit="points", caption=caption))
    verdict = tag("p", str(result["verdict"])) if result.get("verdict") else None
    title = tag("h3", stage_title(record, str(result.get("stage", ""))))
    return tag("div", title, verdict, tag("div", *drawn, class_="pair"))


def _difference(row: Mapping[str, Any]) -> Html:
    note = tag("span", row["note"], class_="faint") if row.get("note") else ""
    return join([tag("span", said(str(row["metric"]))), " ", note])


def controls(record: RunRecord) -> Html:
    """Return the training controls: the same budget spent on rewards or volumes that can teach nothing."""
    results = _of_kind(record, "controls")
    rows = [
        (row, result) for result in results for row in result.get("rows", ()) if row.get("value") is not None
    ]
    if not rows:
        return tag(
            "p",
            "This run has no training controls. ",
            tag("code", f"evid run recipes/{record.name}.toml --with-controls"),
            " trains the same number of steps on a random reward, on a format-only reward and on "
            "other patients' volumes.",
            class_="empty",
        )
    drawn = [_lane(row, result, _named(row), "other") for row, result in rows]
    unit = unit_of(str(rows[0][0].get("metric", "")))
    start = -1.0 if unit == "points" else 0.0
    return lanes(
        drawn, start=start, stop=1.0, unit=unit,
        caption="As many steps over the same data as the run. What a control gains was not earned by seeing.",
    )  # fmt: skip


def _of_kind(record: RunRecord, kind: str) -> list[Line]:
    return [result for result in record.results if result.get("kind") == kind]


def _measured(result: Line) -> list[Mapping[str, Any]]:
    return [row for row in result.get("rows", ()) if row.get("value") is not None]


def _in_condition(rows: Sequence[Mapping[str, Any]], condition: str) -> Mapping[str, Any] | None:
    """Return the strict accuracy under a condition."""
    return next(
        (r for r in rows if r.get("condition") == condition and r.get("metric") == "strict_accuracy"), None
    )
