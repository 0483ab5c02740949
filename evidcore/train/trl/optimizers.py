"""Optimisers of a stage: AdamW, or Muon for matrices beside AdamW for the rest.

Where one matrix has much to learn at once, AdamW's steps follow what has the largest gradients, and the rest
waits. Muon makes the singular values of each step equal, so that small and large gradients count alike.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer


class ChainedOptimizer(Optimizer):
    """Several optimisers of different weights as one."""

    def __init__(self, parts: Sequence[Optimizer]) -> None:
        self.parts = tuple(parts)
        self.defaults: dict[str, Any] = {}

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """All groups, those of the first optimiser first."""
        return [group for part in self.parts for group in part.param_groups]

    @property
    def state(self) -> dict[torch.Tensor, Any]:  # type: ignore[override]
        """What is kept of each weight."""
        return {weight: state for part in self.parts for weight, state in part.state.items()}

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update all weights; a closure is not supported."""
        if closure is not None:
            raise ValueError("optimisers that step together take no closure")
        for part in self.parts:
            part.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients."""
        for part in self.parts:
            part.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Return the states in order."""
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take the states back."""
        for part, state in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)


def with_muon(
    groups: Sequence[Mapping[str, Any]],
    matrices: set[torch.Tensor],
    rest: Callable[[list[dict[str, Any]]], Optimizer],
    *,
    momentum: float | None = None,
) -> Optimizer:
    """Return Muon for the matrices of `groups` and what `rest` makes for the other weights.

    Muon's steps are scaled to the size of AdamW's (Liu et al. 2025, arXiv:2502.16982), so that one learning
    rate serves both.
    """
    wide, others = (
        [
            {**group, "params": some}
            for group in groups
            if (some := [weight for weight in group["params"] if (weight in matrices) is is_wide])
        ]
        for is_wide in (True, False)
    )
    parts: list[Optimizer] = []
    if wide:
        options: dict[str, Any] = {} if momentum is None else {"momentum": momentum}
        parts.append(torch.optim.Muon(wide, adjust_lr_fn="match_rms_adamw", **options))
    if others:
        parts.append(rest(others))
    return ChainedOptimizer(parts)
