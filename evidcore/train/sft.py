"""Stage `sft`: supervised fine-tuning on the tasks' gold answers."""

import dataclasses
import math
from typing import Annotated, ClassVar

from evidcore.contracts import Reweighter, StageContext, StageResult, Workload
from evidcore.recipe.schema import Table
from evidcore.registry.factory import Kind, offer_of
from evidcore.train.settings import SftSettings, TrainingStage


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sft(SftSettings, TrainingStage):
    """Supervised fine-tuning on the tasks' gold answers."""

    reweighter: Annotated[Table, Kind("reweighter")] = dataclasses.field(
        default_factory=lambda: {"use": "uniform"}
    )

    trainer: ClassVar[str] = "sft"

    def check(self, context: StageContext) -> None:
        """Build the re-weighter and how answers come about."""
        context.component("reweighter", self.reweighter, "reweighter")
        super().check(context)

    def workload(self) -> Workload:
        """Return rows and steps; rows of a volume are answers to one prompt, which is computed once."""
        many = self.questions_per_volume
        volumes = f", {many} to a volume" if many > 1 else ""
        return self._workload(
            f"{self.steps} steps of {self.rows_per_step} rows{volumes}",
            prompts_per_step=math.ceil(self.rows_per_step / many), answers_per_prompt=many,
            prompts_per_forward=math.ceil((self.rows_per_forward or self.rows_per_step) / many),
            share_prompts="always" if many > 1 else "never",
        )  # fmt: skip

    def run(self, context: StageContext) -> StageResult:
        """Train on gold answers, and save the model."""
        from evidcore.train.trl.sft import sft  # importing trl takes 6 s

        model, processor = context.model()
        reweighter: Reweighter = context.component("reweighter", self.reweighter, "reweighter")
        source = self.source(context, self.data, in_turn=self.questions_per_volume)
        figures = sft(
            model, processor, source, self, context.folder / "checkpoint", seed=context.recipe.seed,
            announce=context.announce, resume=context.resume, reweighter=reweighter,
            offer=offer_of(reweighter), strategy=self.strategy(context),
            measure=self.measurement(context, model, processor),
        )  # fmt: skip
        return StageResult(figures=figures)
