"""Stage `sft`: supervised fine-tuning on the tasks' gold answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

from evidcore.contracts import Announce, Reweighter, Stage, StageContext, StageResult, Workload
from evidcore.contracts.stage import Found, Key
from evidcore.model.processor import VolumeProcessor
from evidcore.model.vlm import VolumeVLM
from evidcore.recipe.shape import Kind, Surroundings, Table
from evidcore.recipe.trl_fields import DEFAULTS
from evidcore.registry.factory import offer_of
from evidcore.train.fit import named_data
from evidcore.train.rows import PromptSource, prompt_sets
from evidcore.train.settings import SftSettings, problems


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sft(SftSettings, Stage):
    """Supervised fine-tuning on the tasks' gold answers."""

    reweighter: Annotated[Table, Kind("reweighter")] = dataclasses.field(
        default_factory=lambda: {"use": "uniform"}
    )

    trains: ClassVar[bool] = True
    is_distributed: ClassVar[bool] = True

    @property
    def output(self) -> str:
        """Return "model"."""
        return "model"

    @classmethod
    def filled(cls, values: Mapping[str, Any], around: Surroundings) -> dict[str, Any]:
        """Fill in the fields of SFTConfig that a recipe states."""
        return {**values, "trl": {**DEFAULTS["sft"], **values.get("trl", {})}}

    @classmethod
    def problems(cls, table: Mapping[str, Any], at: Key, around: Surroundings) -> Found:
        """Yield what the training keys say against each other."""
        yield from problems("sft", table, at, around)

    def check(self, context: StageContext) -> None:
        """Build the re-weighter."""
        context.component("reweighter", self.reweighter, "reweighter")

    def workload(self) -> Workload:
        """Return rows and steps."""
        lora = "" if self.lora is None else f", LoRA of rank {self.lora.rank}"
        return Workload(
            text=f"{self.steps} steps of {self.rows_per_step} rows{lora}",
            train=self.train,
            trains_whole_model=True,
            steps=self.steps,
            prompts_per_step=self.rows_per_step,
            prompts_per_forward=self.rows_per_forward or self.rows_per_step,
            optimizer=self.optimizer,
            lora_rank=None if self.lora is None else self.lora.rank,
            is_checkpointed=bool(
                self.trl.get("activation_checkpointing") or self.trl.get("gradient_checkpointing")
            ),
        )

    def summary(self) -> str:
        """Return what was trained, on what, for how long."""
        lora = f", LoRA of rank {self.lora.rank}" if self.lora else ""
        length = f"{self.steps} steps, {self.optimizer}"
        return f"`{self.kind}` of {', '.join(self.train)} on {named_data(self)}: {length}{lora}"

    def run(self, context: StageContext) -> StageResult:
        """Train on gold answers, and save the model."""
        model, processor = context.model()
        reweighter: Reweighter = context.component("reweighter", self.reweighter, "reweighter")
        offer = offer_of(reweighter)
        figures = sft(
            model, processor, PromptSource(prompt_sets(context, self.data), seed=context.recipe.seed), self,
            context.folder / "checkpoint", seed=context.recipe.seed, announce=context.announce,
            resume=context.resume, reweighter=reweighter,
            reweighter_package=f"{offer.package} {offer.version}",
        )  # fmt: skip
        return StageResult(figures=figures)


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
