"""What an ablation found: arms, differences from the reference and effects of factors, as one JSON object.

Every figure is the mean over seeds. Differences are paired by seed and item; intervals and p values are those
of a t over seeds and patients. Under five seeds nothing is tested. p values are adjusted after Holm over all
of one table (all differences of all metrics, or all effects).
"""

from __future__ import annotations

import functools
import itertools
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from evidcore.errors import RunError, did_you_mean
from evidcore.evaluate.bootstrap import detectable, holm
from evidcore.runs.folder import RunFolder, read_lines
from evidcore.runs.read import is_phantom
from evidcore_plugin_lab.ablation.cells import Cell
from evidcore_plugin_lab.ablation.contrasts import Arms, Contrast, Item
from evidcore_plugin_lab.ablation.definition import Ablation, Metric
from evidcore_plugin_lab.ablation.items import row_items

Row = dict[str, Any]
SIGNIFICANT = 0.05
INTERVALS = "95 % intervals of a t over seeds and patients"


def outcome(ablation: Ablation, cells: Sequence[Cell], *, accepted: Sequence[str] = ()) -> dict[str, Any]:
    """Measure finished cells against each other; all must hold the metrics' rows.

    `accepted` tells what has changed since of cells that count all the same.
    """
    by_arm = {arm.name: [cell for cell in cells if cell.arm == arm.name] for arm in ablation.arms}
    there = {(cell.arm, cell.seed) for cell in cells}
    every = [(arm.name, seed) for seed in ablation.seeds for arm in ablation.arms]
    result: dict[str, list[Row]] = defaultdict(list)
    for metric in ablation.metrics:
        measured = _Measured(metric, by_arm)
        result["metrics"].append({**vars(metric), "unit": measured.unit})
        for claim in ablation.claims:
            if ablation.claimed(claim) == metric:
                result["claims"].append(measured.row({claim.arm: 1.0, claim.beats: -1.0}, vars(claim)))
        for arm in by_arm:
            result["rows"].append(measured.row({arm: 1.0}, {"arm": arm}))
            if arm != ablation.reference:
                weights = {arm: 1.0, ablation.reference: -1.0}
                result["differences"].append(
                    measured.row(weights, {"arm": arm, "against": ablation.reference})
                )
        result["effects"] += [measured.row(weights, {"effect": name}) for name, weights in _effects(ablation)]
        result["lines"] += measured.reference_lines()
    tables = cells[0].recipe.datasets if cells else {}
    phantoms = [name for name, table in tables.items() if is_phantom(str(table["use"]))]
    return {
        "ablation": ablation.name, "about": ablation.about, "recipe": str(ablation.recipe),
        "phantoms": phantoms, "seeds": list(ablation.seeds), "overrides": list(ablation.overrides),
        "reference": ablation.reference, "intervals": INTERVALS, "metrics": result["metrics"],
        "factors": {name: list(levels) for name, levels in ablation.factors.items()},
        "arms": {arm.name: list(arm.overrides) for arm in ablation.arms},
        "rows": result["rows"], "differences": _adjusted(result["differences"]),
        "effects": _adjusted(result["effects"]),
        "claims": judged(result["claims"]), "reference_lines": result["lines"],
        "missing": [f"{arm}/seed-{seed}" for arm, seed in every if (arm, seed) not in there],
        "accepted": list(accepted),
        "cells": [_cell(cell) for cell in cells],
        "made_with": _made_with(cells),
    }  # fmt: skip


def check_metrics(ablation: Ablation, cell: Cell) -> None:
    """Refuse headline metrics that a finished cell has no row for.

    Raises:
        RunError: naming the metric, and the rows that there are.
    """
    for index, metric in enumerate(ablation.metrics):
        rows = _result(cell, metric)["rows"]
        if _row(rows, metric) is not None:
            continue
        named = [row["metric"] for row in rows if row["name"] == metric.name]
        what, wanted = ("metric", metric.metric) if named else ("row called", metric.name)
        known = sorted({*named} or {row["name"] for row in rows})
        what = f"no {what} {wanted!r}.{did_you_mean(wanted, known)} It has: {', '.join(known)}"
        raise RunError(
            f"{ablation.path}, metrics[{index}]: {metric.stage} of {cell.name} has {what}. "
            "Mend the file; finished cells stay as they are."
        )


class _Measured:
    """One metric in all cells."""

    def __init__(self, metric: Metric, by_arm: Mapping[str, Sequence[Cell]]) -> None:
        self.metric, self._by_arm = metric, by_arm
        self._found = {arm: {cell.seed: self._read(cell) for cell in cells} for arm, cells in by_arm.items()}

    @property
    def unit(self) -> str | None:
        """Return the unit that the metric's rows name; None where its name tells it."""
        cells = [cell for some in self._by_arm.values() for cell in some]
        row = _row(_result(cells[0], self.metric)["rows"], self.metric) if cells else None
        return None if row is None else row.get("unit")

    def row(self, weights: Mapping[str, float], about: Row) -> Row:
        """Return a weighted sum of arms as a row."""
        result = self._arms.contrast(weights) if self._has_items else self._without_items(weights)
        return {
            **about, "stage": self.metric.stage, "name": self.metric.name, "metric": self.metric.metric,
            "unit": self.unit, "value": result.value, "low": result.low, "high": result.high,
            "by_seed": {str(seed): value for seed, value in result.by_seed.items()},
            "standard_error": result.standard_error, "degrees_of_freedom": result.degrees_of_freedom,
            "p_value": result.p_value,
            "items": result.items, "patients": result.patients, "note": result.note,
        }  # fmt: skip

    def reference_lines(self) -> Iterator[Row]:
        """Yield the lines that stand beside an accuracy, as means over the seeds."""
        if "accuracy" not in self.metric.metric:
            return
        cells = {cell.seed: cell for some in self._by_arm.values() for cell in some}  # the same in every arm
        known = [
            lines
            for cell in cells.values()
            if (lines := _result(cell, self.metric).get("reference_lines", {}).get(self.metric.name))
        ]
        for line in dict.fromkeys(name for lines in known for name in lines):
            values = [lines[line] for lines in known if lines.get(line) is not None]
            mean = sum(values) / len(values) if values else None
            yield {
                "line": line, "stage": self.metric.stage, "name": self.metric.name,
                "metric": self.metric.metric, "unit": self.unit, "value": mean,
            }  # fmt: skip

    @functools.cached_property
    def _arms(self) -> Arms:
        items = {arm: {seed: own for seed, (_, own) in cells.items()} for arm, cells in self._found.items()}
        return Arms(items, patients_shared=self._patients_shared())

    @property
    def _has_items(self) -> bool:
        return all(own for cells in self._found.values() for _, own in cells.values())

    def _read(self, cell: Cell) -> tuple[float | None, dict[str, Item]]:
        """Return a cell's value and the items that it is made of."""
        row = _row(_result(cell, self.metric)["rows"], self.metric)
        assert row is not None  # check_metrics has seen it
        lines = read_lines(run_of(cell).path / "answers" / f"{self.metric.stage}.jsonl")
        return row["value"], row_items(lines, row)

    def _without_items(self, weights: Mapping[str, float]) -> Contrast:
        """Return a weighted sum of rows that are no sum over items: only their spread over seeds is known."""
        by_seed: dict[int, float] = {}
        for seed in sorted(set.intersection(*(set(self._found[arm]) for arm in weights))):
            values = [self._found[arm][seed][0] for arm in weights]
            known = [value for value in values if value is not None]
            if len(known) == len(values):
                by_seed[seed] = sum(
                    weight * value for weight, value in zip(weights.values(), known, strict=True)
                )
        mean = sum(by_seed.values()) / len(by_seed) if by_seed else None
        return Contrast(value=mean, by_seed=by_seed, note="no interval: no sum over answers")

    def _patients_shared(self) -> bool:
        """Tell whether all seeds are measured on the same data."""
        prints = set()
        for cell in (cell for some in self._by_arm.values() for cell in some):
            index = cell.stages.index(self.metric.stage)
            used = {use.dataset for use in cell.recipe.stages[index].data_uses()}
            lock = run_of(cell).lock()["dataset"]
            prints.add(tuple(lock[name]["fingerprint"] for name in sorted(used)))
        return len(prints) == 1


def _effects(ablation: Ablation) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield what each factor does, second level minus first, and each pair's difference of differences."""
    factors = list(ablation.factors)
    signs = {
        factor: {arm.name: 1.0 if arm.levels[factor] == second else -1.0 for arm in ablation.arms}
        for factor, (_, second) in ablation.factors.items()
    }
    for factor, (first, second) in ablation.factors.items():
        weights = {arm: sign / 2 ** (len(factors) - 1) for arm, sign in signs[factor].items()}
        yield f"{factor}: {second} minus {first}", weights
    for item, other in itertools.combinations(factors, 2):
        weights = {arm: signs[item][arm] * signs[other][arm] / 2 ** (len(factors) - 2) for arm in signs[item]}
        yield f"{item} x {other}: interaction", weights


def _adjusted(rows: list[Row]) -> list[Row]:
    """Add p values after Holm and detectable differences, over all rows that were tested."""
    tested = _tested(rows)
    for row in rows:
        row["detectable"] = detectable(  # at Holm's first step, the strictest
            row["standard_error"], tests=max(len(tested), 1), degrees_of_freedom=row["degrees_of_freedom"]
        )
    return rows


def judged(claims: list[Row]) -> list[Row]:
    """Add a verdict to each claim: is the difference above what was claimed, below it, or not told apart?

    p values are those of the difference minus what was claimed, adjusted after Holm over all claims.
    """
    from scipy import stats

    for row in claims:
        row["verdict"] = "not shown"
        if row["p_value"] is not None:
            t = (row["value"] - row["by"]) / row["standard_error"]
            row["p_value"] = 2 * float(stats.t.sf(abs(t), row["degrees_of_freedom"]))
    for row in _tested(claims):
        if row["p_holm"] < SIGNIFICANT:
            row["verdict"] = "supported" if row["value"] > row["by"] else "contradicted"
    return claims


def _tested(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that have a p value, after adding the one after Holm over all of them."""
    tested = [row for row in rows if row["p_value"] is not None]
    for row, adjusted in zip(tested, holm([row["p_value"] for row in tested]), strict=True):
        row["p_holm"] = adjusted
    return tested


def _cell(cell: Cell) -> Row:
    run = run_of(cell).path.name
    return {"arm": cell.arm, "seed": cell.seed, "run": run, "seconds": round(cell.seconds, 1)}


def run_of(cell: Cell) -> RunFolder:
    """Return the run of a finished cell."""
    assert cell.run is not None
    return cell.run


def _result(cell: Cell, metric: Metric) -> dict[str, Any]:
    file = run_of(cell).path / "results" / f"{metric.stage}.json"
    result: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return result


def _row(rows: Sequence[Row], metric: Metric) -> Row | None:
    return next((row for row in rows if (row["name"], row["metric"]) == (metric.name, metric.metric)), None)


def _made_with(cells: Sequence[Cell]) -> Row:
    """Return versions and hardware of the last cell that ran."""
    runs = [cell.run for cell in cells if cell.run is not None]
    if not runs:
        return {}
    lock = max(runs, key=lambda run: run.path.name).lock()
    packages = {name: table["version"] for name, table in lock["package"].items()}
    return {"packages": packages, "versions": lock["versions"], "hardware": lock["hardware"]}
