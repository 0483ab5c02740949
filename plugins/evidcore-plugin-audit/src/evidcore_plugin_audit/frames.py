"""What a run wrote, as tables of pandas. Columns have the names that the files have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from evidcore.runs.read import lines, read_object

RESULTS = (
    "stage", "kind", "task", "condition", "name", "metric", "value", "low", "high", "unit", "questions",
    "patients", "headline", "note",
)  # fmt: skip
ANSWERS = (
    "stage", "task", "condition", "prompt_id", "case_id", "patient", "prompt", "text", "malformed", "value",
)  # fmt: skip
ROLLOUTS = (
    "stage", "step", "group", "task", "prompt_id", "case_id", "prompt", "text", "malformed", "total",
    "advantage",
)  # fmt: skip
METRICS = ("stage", "step", "time_s")
_DTYPES = {"empty": "float64", "boolean": "boolean"}  # of columns in which some or all values are missing


def results_frame(files: Iterable[Path]) -> pd.DataFrame:
    """Return a row for each figure of each stage."""
    rows: list[dict[str, Any]] = []
    for path in files:
        result = read_object(path)
        of_stage = {"stage": result.get("stage"), "kind": result.get("kind")}
        for row in result.get("rows") or ():
            rows.append({**of_stage, "task": row["name"], **row, "headline": bool(row.get("headline"))})
    return _frame(rows, RESULTS)


def answers_frame(files: Iterable[Path]) -> pd.DataFrame:
    """Return a row for each answer of each evaluation and audit."""
    return _frame(({"stage": path.stem, **line} for path in files for line in lines(path)), ANSWERS)


def metrics_frame(files: Iterable[Path]) -> pd.DataFrame:
    """Return a row for each step of each stage that trains."""
    return _frame((line for path in files for line in lines(path)), METRICS)


def rollouts_frame(files: Iterable[Path]) -> pd.DataFrame:
    """Return a row for each rollout, with a column `reward/<name>` and `reason/<name>` for each reward.

    A reward that gave no verdict is missing, not 0.
    """
    return _frame((row for path in files for row in _rollouts(path)), ROLLOUTS)


def _rollouts(path: Path) -> Iterator[dict[str, Any]]:
    step, group = None, 0
    for line in lines(path):
        group = group + 1 if line["step"] == step else 0
        step = line["step"]
        of_group = {"stage": path.stem, "step": step, "group": group}
        of_group |= {key: line.get(key) for key in ("task", "prompt_id", "case_id", "prompt")}
        for item in line["rollouts"]:
            rewards: Mapping[str, Any] = item["rewards"]
            own = {key: value for key, value in item.items() if key != "rewards"}
            values = {f"reward/{name}": verdict["value"] for name, verdict in rewards.items()}
            reasons = {f"reason/{name}": verdict["reason"] for name, verdict in rewards.items()}
            yield {**of_group, **own, **values, **reasons}


def _frame(rows: Iterable[Mapping[str, Any]], first: Sequence[str]) -> pd.DataFrame:
    """Return rows as a table, these columns first, whether or not any row has them."""
    result = pd.DataFrame(list(rows))
    others = [name for name in result.columns if name not in first]
    result = result.reindex(columns=[*first, *others])
    kinds = {name: pd.api.types.infer_dtype(result[name]) for name in result.columns}
    return result.astype({name: _DTYPES[kind] for name, kind in kinds.items() if kind in _DTYPES})
