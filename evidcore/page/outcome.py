"""What the run found, at a glance: accuracies before and after, the grounding audit, the training controls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evidcore.page.charts import Lane, lanes
from evidcore.page.markup import Html, join, tag
from evidcore.page.numbers import interval, number
from evidcore.page.record import Line, RunRecord
from evidcore.page.tables import REFERENCE_LINES, is_accuracy, reference_lines, unit_of

_TONES = {"own": "own", "other-patient": "other", "blank": "blank"}
_LABELS = {"own": "own volume", "other-patient": "another patient’s volume", "blank": "blank volume"}


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
        rows = [row for row in result.get("rows", ()) if is_accuracy(row) and row.get("value") is not None]
        if rows:
            blocks.append(
                tag(
                    "div",
                    tag("h3", stage_title(record, str(result.get("stage", "")))),
                    lanes(
                        [_accuracy_lane(row, result) for row in rows],
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
    """Say the audit's outcome in words, where there is one."""
    for result in _of_kind(record, "audit")[::-1]:
        own, other, margin = (_audit_row(result, name) for name in ("own", "other-patient", "margin"))
        if own and other and margin:
            return tag(
                "p",
                tag("b", number(own["value"], "rate")), " right on its own volumes, ",
                tag("b", number(other["value"], "rate")), " on another patient’s: a grounding margin of ",
                tag("b", number(margin["value"], "points")), " points (",
                interval(margin.get("low"), margin.get("high"), "points"), ").",
                class_="lead",
            )  # fmt: skip
    return tag("p", "No grounding audit has run, so what the accuracy rests on is not known.", class_="lead")


def _accuracy_lane(row: Mapping[str, Any], result: Line) -> Lane:
    strict = "strict" in str(row["metric"]) or str(row["metric"]) == "accuracy"
    return Lane(
        label=join([tag("span", row.get("name", "")), " ", tag("span", row["metric"], class_="faint")]),
        value=float(row["value"]),
        low=row.get("low"),
        high=row.get("high"),
        tone="own" if strict else "quiet",
        lines=reference_lines(row, result),
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
            " asks the same questions over another patient’s volumes and over blank ones.",
            class_="empty",
        )
    return join(blocks)


def _audit(record: RunRecord, result: Line) -> Html:
    accuracies, margins = [], []
    for row in result["rows"]:
        if row.get("value") is None:
            continue
        condition = _condition(row)
        if unit_of(str(row.get("metric", ""))) == "points" or "margin" in str(row.get("name", "")):
            margins.append(
                Lane(
                    label=str(row.get("name", "")),
                    value=float(row["value"]),
                    low=row.get("low"),
                    high=row.get("high"),
                )
            )
        elif is_accuracy(row):
            accuracies.append(
                Lane(
                    label=_LABELS.get(condition, str(row.get("name", ""))),
                    value=float(row["value"]),
                    low=row.get("low"),
                    high=row.get("high"),
                    tone=_TONES.get(condition, "quiet"),
                    lines=reference_lines(row, result),
                )
            )
    pieces = [tag("h3", stage_title(record, str(result.get("stage", ""))))]
    charts = []
    if accuracies:
        rows = [row for row in result["rows"] if is_accuracy(row)]
        charts.append(lanes(accuracies, start=0.0, stop=1.0, unit="rate", caption=_line_key(rows, result)))
    if margins:
        charts.append(
            lanes(
                margins, start=-1.0, stop=1.0, unit="points",
                caption="Accuracy on own volumes minus the other condition, in points. "
                "An interval that covers 0 says: nothing shows that it looks.",
            )
        )  # fmt: skip
    pieces.append(tag("div", *charts, class_="pair"))
    return tag("div", *pieces)


def controls(record: RunRecord) -> Html:
    """Return the training controls: the same budget spent on rewards or volumes that can teach nothing."""
    results = _of_kind(record, "controls") + _of_kind(record, "control")
    rows = [
        (row, result) for result in results for row in result.get("rows", ()) if row.get("value") is not None
    ]
    if not rows:
        return tag(
            "p",
            "This run has no training controls. ",
            tag("code", f"evid run recipes/{record.name}.toml --with-controls"),
            " trains the same number of steps on a random reward, on a format-only reward and on "
            "other patients’ volumes.",
            class_="empty",
        )
    unit = unit_of(str(rows[0][0].get("metric", "")))
    drawn = [
        Lane(
            label=join([
                tag("span", row.get("name", "")),
                " ",
                tag("span", row.get("metric", ""), class_="faint"),
            ]),
            value=float(row["value"]),
            low=row.get("low"),
            high=row.get("high"),
            tone="other",
            lines=reference_lines(row, result),
        )
        for row, result in rows
    ]
    start = -1.0 if unit == "points" else 0.0
    return lanes(
        drawn, start=start, stop=1.0, unit=unit,
        caption="Same data order and number of steps as the run. What a control gains was not earned by seeing.",
    )  # fmt: skip


def _of_kind(record: RunRecord, kind: str) -> list[Line]:
    return [result for result in record.results if result.get("kind") == kind]


def _condition(row: Mapping[str, Any]) -> str:
    name = str(row.get("condition") or row.get("name", ""))
    return next((key for key in ("other-patient", "blank", "own") if key in name), name)


def _audit_row(result: Line, name: str) -> Mapping[str, Any] | None:
    """Return the row of a condition, or the margin over another patient's volumes."""
    rows: Sequence[Mapping[str, Any]] = result.get("rows", ())
    for row in rows:
        is_margin = "margin" in f"{row.get('name')} {row.get('metric')}"
        if row.get("value") is None:
            continue
        if name == "margin" and is_margin and "blank" not in str(row.get("name")):
            return row
        if name != "margin" and not is_margin and is_accuracy(row) and _condition(row) == name:
            return row
    return None
