"""Groups whose answers are all worth the same: they must pull nowhere, and need no computing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxtyping import Float
from torch import Tensor

from evidcore.train.record import EQUAL


def without_rounding(
    advantages: Float[Tensor, " row"], totals: Sequence[float], answers_per_prompt: int
) -> Float[Tensor, " row"]:
    """Return advantages with exact zeros where a group's totals are equal.

    The mean of equal numbers is off by a rounding, which division by a spread of nearly 0 blows up.
    """
    kept = advantages.clone()
    for start in range(0, len(totals), answers_per_prompt):
        group = totals[start : start + answers_per_prompt]
        if max(group) - min(group) < EQUAL:
            kept[start : start + answers_per_prompt] = 0.0
    return kept


def without_dead_groups(batch: dict[str, Any], answers_per_prompt: int) -> dict[str, Any]:
    """Leave out groups without advantages; the gradient of the mean over rows stays the same.

    Holds without a KL penalty or entropy bonus, for a loss that is a mean over rows and linear in advantages.
    """
    total = len(batch["advantages"])
    live = batch["advantages"].view(-1, answers_per_prompt).ne(0).any(1)
    if not bool(live.any()):
        live[0] = True  # a step needs something to compute
    if bool(live.all()):
        return batch
    rows = live.repeat_interleave(answers_per_prompt).nonzero().flatten().tolist()
    kept: dict[str, Any] = {}
    for name, value in batch.items():
        is_per_row = isinstance(value, list) or (isinstance(value, Tensor) and value.dim() > 0)
        if is_per_row and len(value) == total:
            kept[name] = [value[row] for row in rows] if isinstance(value, list) else value[rows]
        else:
            kept[name] = value
    kept["advantages"] *= len(rows) / total
    return kept
