"""Stage `grpo`: group relative policy optimisation against composed rewards."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from evidcore.contracts import RolloutStrategy
from evidcore.model.processor import VolumeProcessor
from evidcore.model.vlm import VolumeVLM
from evidcore.train.rows import PromptSource
from evidcore.train.settings import Announce, GrpoSettings, NamedReward


def grpo(
    model: VolumeVLM,
    processor: VolumeProcessor,
    source: PromptSource,
    rewards: Sequence[NamedReward],
    settings: GrpoSettings,
    folder: Path,
    *,
    seed: int,
    announce: Announce,
    strategy: RolloutStrategy,
    replay: PromptSource | None = None,
    resume: bool = False,
) -> dict[str, float]:
    """Train `model` in place and save it, with its processor, to `folder`.

    Args:
        model: what the stage starts from, and the KL reference where beta is above 0 or rows are replayed.
        processor: its processor.
        source: prompts; `PromptSource(volumes="other-patient")` is the wrong-volume training control.
        rewards: in the recipe's order.
        settings: the stage's keys.
        folder: where the trained model goes; `folder/steps` holds what a resume needs.
        seed: of everything random in the stage.
        announce: told the figures and the judged groups of each step.
        strategy: how the answers of a group come about.
        replay: prompts whose gold answers are replayed, with `settings.replay`.
        resume: continue from the last complete checkpoint in `folder/steps` where there is one.

    Returns:
        Figures of the stage.
    """
    from evidcore.train.trl.grpo import run_grpo  # importing trl takes 6 s

    return run_grpo(
        model, processor, source, rewards, settings, folder, seed=seed, announce=announce, strategy=strategy,
        replay=replay, resume=resume,
    )  # fmt: skip
