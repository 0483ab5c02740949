"""Stage `evaluate`: answer every question of the data entries greedily, and measure the answers."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from evidcore.contracts import Answers, EvalOptions, Row, StageContext, StageResult
from evidcore.evaluate.eval_stage import AnonymizedPolicy, EvalStage, training


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluate(EvalStage):
    """Measure the model as the stages before left it."""

    def ask(self, policy: AnonymizedPolicy, asking: EvalOptions, context: StageContext) -> StageResult:
        """Answer, measure, and print beside it what blind rules score."""
        rows: list[Row] = []
        answers: list[Mapping[str, Any]] = []
        lines = {}
        for use in self.data:
            prompts, task = self.prompts(use, context), context.tasks[use.task]
            policy.prove(prompts)
            evaluation = self.evaluation(use, context)
            replies = evaluation.answer(policy, prompts, task, asking)
            given = [Answers(prompts, replies)]
            [scored], blind = evaluation.score_beside_blind(
                given, prompts, training(use, context), task, use.task
            )
            rows += [*scored.rows(), *policy.rows(use.task, asking.max_new_tokens)]
            if blind is not None:
                rows += blind.rows
                lines[use.task] = blind.figures
            values = scored.values(evaluation.headline)
            answers += [{**line, "value": value} for line, value in zip(scored.lines(), values, strict=True)]
        return StageResult(rows=tuple(rows), answers=tuple(answers), reference_lines=lines)
