"""What the stages are told: plain frozen settings, and who hears about their steps.

Their defaults are those of a recipe's keys.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, Self, runtime_checkable

from evidcore.contracts import Reward
from evidcore.recipe.shape import Grpo, RewardKeys, Sft, SharePrompts, TrainingKeys
from evidcore.recipe.shape import Lora as Lora
from evidcore.recipe.shape import Replay as Replay

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
class StageSettings:
    """Keys of every stage that trains the whole model.

    `learning_rate` is one number, or one per part. `optimizer` "muon" takes Muon for matrices and AdamW for
    the rest; `momentum` is Muon's. `trl` passes fields of SFTConfig or GRPOConfig through.
    """

    train: tuple[str, ...]
    steps: int
    learning_rate: float | Mapping[str, float]
    optimizer: Literal["adamw", "muon"] = TrainingKeys.optimizer
    momentum: float | None = TrainingKeys.momentum
    save_every_steps: int = TrainingKeys.save_every_steps
    lora: Lora | None = None
    trl: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, stage: TrainingKeys) -> Self:
        """Take the settings from a recipe's stage."""
        return cls(**{item.name: getattr(stage, item.name) for item in dataclasses.fields(cls)})


@dataclasses.dataclass(frozen=True, kw_only=True)
class SftSettings(StageSettings):
    """Keys of an `sft` stage.

    `rows_per_forward` bounds memory; 0: the whole step at once. `loss_per`: what the weighted sum over a
    step's target tokens is divided by, "token" the sum of their weights, "row" the number of rows.
    """

    rows_per_step: int = Sft.rows_per_step
    rows_per_forward: int = Sft.rows_per_forward
    loss_per: Literal["token", "row"] = Sft.loss_per


@dataclasses.dataclass(frozen=True, kw_only=True)
class GrpoSettings(StageSettings):
    """Keys of a `grpo` stage.

    `prompts_per_forward` bounds memory (whole groups pass together); 0: the whole step at once.
    `share_prompts`: whether scoring computes a prompt once for all its answers; "auto": where that pays.
    """

    prompts_per_step: int = Grpo.prompts_per_step
    answers_per_prompt: int = Grpo.answers_per_prompt
    prompts_per_forward: int = Grpo.prompts_per_forward
    share_prompts: SharePrompts = Grpo.share_prompts
    temperature: float = Grpo.temperature
    max_new_tokens: int = Grpo.max_new_tokens
    reward_time_limit_s: float = Grpo.reward_time_limit_s  # 0: none
    replay: Replay | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class NamedReward:
    """A reward as the recipe composes it."""

    name: str
    reward: Reward
    weight: float = RewardKeys.weight
    gate: str = RewardKeys.gate  # counted only where the reward of this name scored above 0
    package: str = ""  # "package version", named when the reward breaks its contract


Volumes = Literal["own", "other-patient"]
