"""Stage `oracle`: measure the gold answers as an evaluate stage measures a model's, without a model."""

import dataclasses
from collections.abc import Mapping, Sequence

from evidcore.api import (
    Answers,
    EvalOptions,
    EvalStage,
    Policy,
    Prompt,
    StageContext,
    StageResult,
    Task,
    Workload,
)


class Gold(Policy):
    """Writes the right answer."""

    def __init__(self, task: Task) -> None:
        """Answer for a task."""
        self.task = task

    def generate(
        self, prompts: Sequence[Prompt], *, max_new_tokens: int, temperature: float = 0.0
    ) -> list[str]:
        """Return the gold answers."""
        return [self.task.gold(prompt)[0] for prompt in prompts]

    def log_likelihoods(
        self, prompts: Sequence[Prompt], completions: Sequence[Sequence[str]]
    ) -> list[list[float]]:
        """Like the gold answer alone."""
        golds = zip(self.generate(prompts, max_new_tokens=0), completions, strict=True)
        return [[0.0 if text == gold else -1.0 for text in some] for gold, some in golds]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Oracle(EvalStage):
    """What evaluations give for gold answers: no model can be expected to do better."""

    def depends_on(self, context: StageContext, upstream: Mapping[str, str]) -> EvalStage.Dependencies:
        """Depend on how volumes are shown: on no weights, and on no stage before."""
        return self.Dependencies(model={"view": context.recipe.model.view}, upstream={}, words="")

    def workload(self) -> Workload:
        """Nothing is computed by the model."""
        return Workload(text=f"gold answers of {len(self.data)} data entries")

    def run(self, context: StageContext) -> StageResult:
        """Measure the gold answers of each data entry."""
        rows, lines = [], []
        for use in self.data:
            prompts, task = self.prompts(use, context), context.tasks[use.task]
            evaluation = self.evaluation(use, context)
            asking = EvalOptions(max_new_tokens=self.max_new_tokens, headline_only=True)
            said = evaluation.answer(Gold(task), prompts, task, asking)
            [scored] = evaluation.score([Answers(prompts, said)], task, use.task)
            rows += scored.rows()
            lines += scored.lines()
        return StageResult(rows=tuple(rows), answers=tuple(lines))
