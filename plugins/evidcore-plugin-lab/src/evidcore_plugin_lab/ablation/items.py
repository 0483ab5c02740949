"""What each question or report adds to a results row: the seam between answers and paired statistics.

Everything is written as sums: an accuracy as 1 or 0 over 1, a metric of reports as its line of answers holds
it. Rows that no sum over items gives (an AUC, a reference line) have no items.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from evidcore.contracts import Totals
from evidcore.evaluate.choice import ACCURACIES
from evidcore.evaluate.pooling import from_json
from evidcore.evaluate.reference_lines import cluster
from evidcore_plugin_lab.ablation.contrasts import Item

Line = Mapping[str, Any]  # of answers/<stage>.jsonl


def row_items(lines: Iterable[Line], row: Mapping[str, Any]) -> dict[str, Item]:
    """Return the items of a results row by prompt id; empty where the row is no sum over answers.

    A prompt that was answered several times (an audit exchanges volumes more than once) counts as one item
    with the mean of its answers.

    Args:
        lines: the answers of the row's stage.
        row: `name` and `metric`; `task` and `condition` where an audit wrote it, and of which metric a margin
            is, `of`.
    """
    task, metric = row.get("task", row["name"]), row["metric"]
    own = [line for line in lines if line["task"] == task]
    if metric == "grounding_margin" or "against" in row:
        sides = ("own", row.get("against", "other-patient"))
        return _difference(*(_items(_under(side, own), row.get("of", "strict_accuracy")) for side in sides))
    return _items(_under(row.get("condition"), own), metric)


def _items(lines: Sequence[Line], metric: str) -> dict[str, Item]:
    """Return an item per prompt, the mean of its answers; None where none of them has a figure."""
    has_figure = any(metric in line.get("figures", {}) for line in lines)
    known: dict[str, list[Totals]] = {}
    owners: dict[str, str] = {}
    for line in lines:
        sums = _figure(line, metric) if has_figure else _choice(line, metric)
        if sums is None and not has_figure:
            continue  # the line has no say
        owners[line["prompt_id"]] = cluster(line["patient"], line["case_id"])
        known.setdefault(line["prompt_id"], []).extend([] if sums is None else [sums])
    result = {}
    for prompt, some in known.items():
        means = tuple(np.mean([item.numbers for item in some], axis=0).tolist()) if some else ()
        result[prompt] = Item(owners[prompt], Totals(some[0].pooling, means) if some else None)
    return result


def _under(condition: str | None, lines: Sequence[Line]) -> Sequence[Line]:
    return [line for line in lines if line["condition"] == condition] if condition else lines


def _figure(line: Line, metric: str) -> Totals | None:
    figures = line.get("figures", {})
    figure = from_json(figures[metric]) if metric in figures else None
    return figure if figure is None or isinstance(figure, Totals) else Totals("ratio", (figure, 1.0))


def _difference(first: Mapping[str, Item], second: Mapping[str, Item]) -> dict[str, Item]:
    """Return first minus second, question by question; nothing where they are no numbers but pooled sums."""
    every = [item.sums for item in (*first.values(), *second.values()) if item.sums is not None]
    if any(sums.pooling != "ratio" or sums.numbers[1:] != (1.0,) for sums in every):
        return {}
    result = {}
    for prompt, (patient, entry) in first.items():
        other = second[prompt].sums if prompt in second else None
        if entry is not None and other is not None:
            result[prompt] = Item(patient, Totals("ratio", (entry.numbers[0] - other.numbers[0], 1.0)))
    return result


def _choice(line: Line, metric: str) -> Totals | None:
    """Return what an answer to a question with options adds to a metric, None where it has no say."""
    name, _, finding = metric.partition("/")
    is_valid = line["malformed"] is None
    if name == "format_rate":
        return Totals("ratio", (float(is_valid), 1.0))
    if name == "accuracy_given_valid_format" and "answer" in line:
        return Totals("ratio", (float(is_valid and line["choice"] == line["answer"]), float(is_valid)))
    choice = ACCURACIES.get(name, "")
    if choice not in line or "answer" not in line or finding not in ("", line["finding"]):
        return None
    return Totals("ratio", (float(line[choice] == line["answer"]), 1.0))
