"""Stage `sft`: supervised fine-tuning on the tasks' gold answers."""

from __future__ import annotations

from pathlib import Path

from evidcore.contracts import Reweighter
from evidcore.model.processor import VolumeProcessor
from evidcore.model.vlm import VolumeVLM
from evidcore.train.rows import PromptSource
from evidcore.train.settings import Announce, SftSettings


def sft(
    model: VolumeVLM,
    processor: VolumeProcessor,
    source: PromptSource,
    settings: SftSettings,
    folder: Path,
    *,
    seed: int,
    announce: Announce,
    reweighter: Reweighter | None = None,
    reweighter_package: str = "",
    resume: bool = False,
) -> dict[str, float]:
    """Train `model` in place and save it, with its processor, to `folder`.

    Args:
        model: what the stage starts from.
        processor: its processor.
        source: prompts; the tasks' gold answers are the targets.
        settings: the stage's keys.
        folder: where the trained model goes; `folder/steps` holds what a resume needs.
        seed: of everything random in the stage.
        announce: told the figures of each step.
        reweighter: weighs the target tokens; None weighs each 1, with a loss per token alone.
        reweighter_package: "package version", named when the re-weighter breaks its contract.
        resume: continue from the last complete checkpoint in `folder/steps` where there is one.

    Returns:
        Figures of the stage.
    """
    from evidcore.train.trl.sft import run_sft  # importing trl takes 6 s

    return run_sft(
        model, processor, source, settings, folder, seed=seed, announce=announce, reweighter=reweighter,
        reweighter_package=reweighter_package, resume=resume,
    )  # fmt: skip
