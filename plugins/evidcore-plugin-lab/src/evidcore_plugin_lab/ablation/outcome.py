"""What an ablation found: arms, differences from the reference and effects of factors, as one JSON object.

Every figure is the mean over seeds. Differences are paired by seed and item; intervals and p values are those
of a t over seeds and patients. Under five seeds nothing is tested. p values are adjusted after Holm over all
of one table (all differences of all metrics, or all effects).
"""

import dataclasses
import itertools
import operator
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from evidcore_plugin_pages.record import is_phantom

from evidcore.errors import RunError, did_you_mean
from evidcore.evaluate.bootstrap import detectable, holm
from evidcore.runs.read import lines
from evidcore_plugin_lab.ablation.cells import Cell
from evidcore_plugin_lab.ablation.contrasts import Arms, Contrast
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
        for claim in ablation.claim:
            if ablation.metric_of(claim) == metric:
                result["claims"].append(measured.row({claim.arm: 1.0, claim.beats: -1.0}, vars(claim)))
        for arm in by_arm:
            result["rows"].append(measured.row({arm: 1.0}, {"arm": arm}))
            if arm != ablation.reference:
                weights = {arm: 1.0, ablation.reference: -1.0}
                about = {"arm": arm, "against": ablation.reference}
                result["differences"].append(measured.row(weights, about))
        result["effects"] += [measured.row(weights, {"effect": name}) for name, weights in _effects(ablation)]
        result["lines"] += measured.reference_lines()
    tables = cells[0].recipe.datasets if cells else {}
    phantoms = [name for name, table in tables.items() if is_phantom(str(table["use"]))]
    return {
        "ablation": ablation.name, "about": ablation.about, "recipe": str(ablation.recipe_path),
        "phantoms": phantoms, "seeds": list(ablation.seeds), "overrides": list(ablation.overrides),
        "reference": ablation.reference, "intervals": INTERVALS, "metrics": result["metrics"],
        "factors": {name: list(levels) for name, levels in ablation.factor.items()},
        "arms": {arm.name: list(arm.overrides) for arm in ablation.arms},
        "rows": result["rows"], "differences": _adjusted(result["differences"]),
        "effects": _adjusted(result["effects"]),
        "claims": judged(result["claims"]), "reference_lines": result["lines"],
        "missing": [f"{arm}/seed-{seed}" for arm, seed in every if (arm, seed) not in there],
        "accepted": list(accepted),
        "cells": [
            {"arm": cell.arm, "seed": cell.seed, "run": cell.ran.path.name, "seconds": round(cell.seconds, 1)}
            for cell in cells
        ],
        "made_with": _made_with(cells),
    }  # fmt: skip


def check_metrics(ablation: Ablation, cell: Cell) -> None:
    """Refuse headline metrics that a finished cell has no row for."""
    for index, metric in enumerate(ablation.metrics):
        rows = cell.ran.result(metric.stage)["rows"]
        if _row(rows, metric) is not None:
            continue
        named = [row["metric"] for row in rows if row["name"] == metric.name]
        what, wanted = ("metric", metric.metric) if named else ("row called", metric.name)
        known = sorted({*named} or {row["name"] for row in rows})
        what = f"no {what} {wanted!r}.{did_you_mean(wanted, known)} It has: {', '.join(known)}"
        where = f"{ablation.path}, metrics[{index}]: {metric.stage} of {cell.name}"
        raise RunError(f"{where} has {what}. Mend the file; finished cells stay as they are.")


class _Measured:
    """One metric in all cells."""

    def __init__(self, metric: Metric, by_arm: Mapping[str, Sequence[Cell]]) -> None:
        self.metric = metric
        self._cells = [cell for cells in by_arm.values() for cell in cells]
        results = {cell.name: cell.ran.result(metric.stage) for cell in self._cells}
        rows = {name: _row(result["rows"], metric) or {} for name, result in results.items()}
        self.unit = next((row.get("unit") for row in rows.values()), None)  # None: the metric tells it
        self._lines = {  # beside an accuracy, by seed: the same in every arm
            cell.seed: results[cell.name].get("reference_lines", {}).get(metric.name) for cell in self._cells
        }
        self._values = {
            arm: {cell.seed: rows[cell.name]["value"] for cell in cells} for arm, cells in by_arm.items()
        }
        file = f"{metric.stage}.jsonl"
        items = {
            arm: {
                cell.seed: row_items(lines(cell.ran.path / "answers" / file), rows[cell.name])
                for cell in cells
            }
            for arm, cells in by_arm.items()
        }
        is_summed = all(own for cells in items.values() for own in cells.values())
        self._arms = Arms(items, patients_shared=self._patients_shared()) if is_summed else None

    def row(self, weights: Mapping[str, float], about: Row) -> Row:
        """Return a weighted sum of arms as a row."""
        result = self._without_items(weights) if self._arms is None else self._arms.contrast(weights)
        by_seed = {str(seed): value for seed, value in result.by_seed.items()}
        return {**about, **self._place(), **dataclasses.asdict(result), "by_seed": by_seed}

    def reference_lines(self) -> Iterator[Row]:
        """Yield the lines that stand beside an accuracy, as means over the seeds."""
        known = [values for values in self._lines.values() if values]
        for line in dict.fromkeys(name for values in known for name in values):
            values = [by_line[line] for by_line in known if by_line.get(line) is not None]
            if "accuracy" in self.metric.metric:
                yield {"line": line, **self._place(), "value": statistics.fmean(values) if values else None}

    def _place(self) -> Row:
        where = {"stage": self.metric.stage, "name": self.metric.name, "metric": self.metric.metric}
        return {**where, "unit": self.unit}

    def _without_items(self, weights: Mapping[str, float]) -> Contrast:
        """Return a weighted sum of rows that are no sum over items: only their spread over seeds is known."""
        by_seed: dict[int, float] = {}
        for seed in sorted(set.intersection(*(set(self._values[arm]) for arm in weights))):
            values = [self._values[arm][seed] for arm in weights]
            if None not in values:
                by_seed[seed] = sum(map(operator.mul, weights.values(), values))
        mean = statistics.fmean(by_seed.values()) if by_seed else None
        return Contrast(value=mean, by_seed=by_seed, note="no interval: no sum over answers")

    def _patients_shared(self) -> bool:
        """Tell whether all seeds are measured on the same data."""
        prints = set()
        for cell in self._cells:
            stage = cell.recipe.stages[cell.recipe.stage_names.index(self.metric.stage)]
            datasets, used = cell.ran.lock()["dataset"], {use.dataset for use in stage.data_uses()}
            prints.add(tuple(datasets[name]["fingerprint"] for name in sorted(used)))
        return len(prints) == 1


def _effects(ablation: Ablation) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield what each factor does, second level minus first, and each pair's difference of differences."""
    factors = list(ablation.factor)
    signs = {
        factor: {arm.name: 1.0 if arm.levels[factor] == second else -1.0 for arm in ablation.arms}
        for factor, (_, second) in ablation.factor.items()
    }
    for factor, (first, second) in ablation.factor.items():
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


def _row(rows: Sequence[Row], metric: Metric) -> Row | None:
    return next((row for row in rows if (row["name"], row["metric"]) == (metric.name, metric.metric)), None)


def _made_with(cells: Sequence[Cell]) -> Row:
    """Return versions and hardware of the last cell that ran."""
    if not cells:
        return {}
    lock = max((cell.ran for cell in cells), key=lambda run: run.path.name).lock()
    packages = {name: table["version"] for name, table in lock["package"].items()}
    return {"packages": packages, "versions": lock["versions"], "hardware": lock["hardware"]}
