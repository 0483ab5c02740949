"""What the stages are told: plain frozen settings, and who hears about their steps.

Their defaults are those of a recipe's keys.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

from evidcore.contracts import Reward
from evidcore.recipe.shape import Grpo, RewardKeys, Sft
from evidcore.recipe.shape import Lora as Lora

PARTS = ("encoder", "bridge", "language")


@runtime_checkable
class Announce(Protocol):
    """Whoever is told about the steps of one stage."""

    def step_finished(self, step: int, metrics: Mapping[str, float]) -> None:
        """Hear the figures of a step; steps count from 1."""

    def rollouts_judged(self, step: int, groups: Sequence[Mapping[str, Any]]) -> None:
        """Hear the judged groups of a step, as lines of the rollout file."""


class Silent:
    """Tells nobody."""

    def step_finished(self, step: int, metrics: Mapping[str, float]) -> None:
        """Drop it."""

    def rollouts_judged(self, step: int, groups: Sequence[Mapping[str, Any]]) -> None:
        """Drop it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SftSettings:
    """Keys of an `sft` stage.

    `learning_rate` is one number, or one per part. `optimizer` "muon" takes Muon for matrices and AdamW for
    the rest; `momentum` is Muon's. `rows_per_forward` bounds memory; 0: the whole step at
    once. `trl` passes fields of SFTConfig through.
    """

    train: tuple[str, ...]
    steps: int
    learning_rate: float | Mapping[str, float]
    optimizer: Literal["adamw", "muon"] = Sft.optimizer
    momentum: float | None = Sft.momentum
    rows_per_step: int = Sft.rows_per_step
    rows_per_forward: int = Sft.rows_per_forward
    save_every_steps: int = Sft.save_every_steps
    lora: Lora | None = None
    trl: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NamedReward:
    """A reward as the recipe composes it."""

    name: str
    reward: Reward
    weight: float = RewardKeys.weight
    gate: str = RewardKeys.gate  # counted only where the reward of this name scored above 0
    package: str = ""  # "package version", named when the reward breaks its contract


@dataclasses.dataclass(frozen=True, kw_only=True)
class GrpoSettings:
    """Keys of a `grpo` stage.

    `learning_rate` is one number, or one per part. `optimizer` "muon" takes Muon for matrices and AdamW for
    the rest; `momentum` is Muon's. `prompts_per_forward` bounds memory (whole groups pass
    together); 0: the whole step at once. `trl` passes fields of GRPOConfig through.
    """

    train: tuple[str, ...]
    steps: int
    learning_rate: float | Mapping[str, float]
    optimizer: Literal["adamw", "muon"] = Grpo.optimizer
    momentum: float | None = Grpo.momentum
    prompts_per_step: int = Grpo.prompts_per_step
    answers_per_prompt: int = Grpo.answers_per_prompt
    prompts_per_forward: int = Grpo.prompts_per_forward
    temperature: float = Grpo.temperature
    max_new_tokens: int = Grpo.max_new_tokens
    save_every_steps: int = Grpo.save_every_steps
    reward_time_limit_s: float = Grpo.reward_time_limit_s  # 0: none
    lora: Lora | None = None
    trl: Mapping[str, Any] = dataclasses.field(default_factory=dict)


Volumes = Literal["own", "other-patient"]
