"""What each question or report adds to a results row: the seam between answers and paired statistics.

A row's value is the sum of `above` over its items divided by the sum of `below`: for an accuracy 1 or 0 over
1, for a micro F1 twice the true positives over what F1 divides by. Rows that no sum over items gives (an AUC,
a mean over findings) have no items.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from evidcore.evaluate.reference_lines import cluster

Line = Mapping[str, Any]  # of answers/<stage>.jsonl
Share = tuple[float, float]  # above, below
_Counted = Callable[
    [Line, str], Share | None
]  # line, finding ("" for all) -> None where the item does not count


class Item(NamedTuple):
    """One question or report."""

    patient: str  # or the case, where no patient is known
    above: float
    below: float


def row_items(lines: Iterable[Line], row: Mapping[str, Any]) -> dict[str, Item]:
    """Return the items of a results row by prompt id; empty where the row is no sum over answers.

    A prompt that was answered several times (an audit exchanges volumes more than once) counts as one item
    with the mean of its answers.

    Args:
        lines: the answers of the row's stage.
        row: `name` and `metric`; `task` and `condition` where an audit wrote it.
    """
    task, condition = row.get("task", row["name"]), row.get("condition")
    own = [line for line in lines if line["task"] == task and condition in (None, line["condition"])]
    if row["metric"] == "grounding_margin":
        return _difference(*(_items(own, "strict_accuracy", side) for side in ("own", "other-patient")))
    return _items(own, row["metric"], condition)


def _items(lines: Iterable[Line], metric: str, condition: str | None) -> dict[str, Item]:
    name, _, finding = metric.partition("/")
    if name not in _COUNTED:
        return {}
    found: dict[str, list[Share]] = {}
    owners: dict[str, str] = {}
    for line in lines:
        if condition not in (None, line["condition"]):
            continue
        share = _COUNTED[name](line, finding)
        if share is not None:
            found.setdefault(line["prompt_id"], []).append(share)
            owners[line["prompt_id"]] = cluster(line["patient"], line["case_id"])
    return {
        prompt: Item(owners[prompt], *(sum(side) / len(shares) for side in zip(*shares, strict=True)))
        for prompt, shares in found.items()
    }


def _difference(first: Mapping[str, Item], second: Mapping[str, Item]) -> dict[str, Item]:
    """Return first minus second, question by question."""
    return {
        prompt: Item(one.patient, one.above - second[prompt].above, 1.0)
        for prompt, one in first.items()
        if prompt in second
    }


def _reading(reading: str) -> _Counted:
    def share(line: Line, finding: str) -> Share | None:
        if reading not in line or "answer" not in line or finding not in ("", line["finding"]):
            return None
        return float(line[reading] == line["answer"]), 1.0

    return share


def _format(line: Line, _: str) -> Share:
    return float(line["malformed"] is None), 1.0


def _given_format(line: Line, _: str) -> Share | None:
    if "answer" not in line:
        return None
    is_valid = line["malformed"] is None
    return float(is_valid and line["choice"] == line["answer"]), float(is_valid)


def _f1(line: Line, finding: str) -> Share | None:
    """Return 2 TP and 2 TP + FP + FN of a report, over all findings or of one."""
    if "affirmed" not in line:
        return None
    said, true, false = (
        {name for name in line[key] if finding in ("", name)} for key in ("affirmed", "present", "absent")
    )
    hits = len(said & true)
    return 2.0 * hits, 2.0 * hits + len(said & false) + len(true - said)


_COUNTED: Mapping[str, _Counted] = {
    "strict_accuracy": _reading("choice"),
    "lenient_accuracy": _reading("lenient_choice"),
    "rescue_accuracy": _reading("rescue_choice"),
    "log_likelihood_accuracy": _reading("log_likelihood_choice"),
    "verdict_log_likelihood_accuracy": _reading("verdict_log_likelihood_choice"),
    "format_rate": _format,
    "accuracy_given_valid_format": _given_format,
    "findings_f1_micro": _f1,
    "findings_f1": _f1,
}
