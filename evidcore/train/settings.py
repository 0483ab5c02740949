"""What the stages are told: plain frozen settings, and who hears about their steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

from evidcore.contracts import Reward

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
class Lora:
    """Train low-rank additions to the language model's layers, merged into it when the stage ends."""

    rank: int = 16
    alpha: float = 32.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class SftSettings:
    """Keys of an `sft` stage.

    `learning_rate` is one number, or one per part. `rows_per_forward` bounds memory; 0: the whole step at
    once. `trl` passes fields of SFTConfig through.
    """

    train: tuple[str, ...]
    steps: int
    learning_rate: float | Mapping[str, float] = 1e-4
    rows_per_step: int = 16
    rows_per_forward: int = 0
    save_every_steps: int = 50
    lora: Lora | None = None
    trl: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NamedReward:
    """A reward as the recipe composes it."""

    name: str
    reward: Reward
    weight: float = 1.0
    gate: str = ""  # counted only where the reward of this name scored above 0
    package: str = ""  # "package version", named when the reward breaks its contract


@dataclasses.dataclass(frozen=True, kw_only=True)
class GrpoSettings:
    """Keys of a `grpo` stage.

    `learning_rate` is one number, or one per part. `prompts_per_forward` bounds memory (whole groups pass
    together); 0: the whole step at once. `trl` passes fields of GRPOConfig through.
    """

    train: tuple[str, ...]
    steps: int
    learning_rate: float | Mapping[str, float] = 1e-6
    prompts_per_step: int = 8
    answers_per_prompt: int = 8
    prompts_per_forward: int = 0
    temperature: float = 1.0
    max_new_tokens: int = 256
    save_every_steps: int = 50
    reward_time_limit_s: float = 600.0  # 0: none
    lora: Lora | None = None
    trl: Mapping[str, Any] = dataclasses.field(default_factory=dict)


Volumes = Literal["own", "other-patient"]
