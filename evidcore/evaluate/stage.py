"""Stage `evaluate`: answer every question of the data entries greedily, and measure the answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from evidcore.case import Prompt
from evidcore.contracts import Answers, Asking, Policy, Row, StageContext, StageResult
from evidcore.evaluate.asking import AskingStage, training
from evidcore.evaluate.probe import encoder_features, linear_probe


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluate(AskingStage):
    """Measure the model as the stages before left it."""

    probe: bool = False  # also how well a linear probe reads each finding off the frozen encoder

    def bare(self) -> Evaluate:
        """Return the stage without the probe."""
        return dataclasses.replace(self, probe=False)

    def ask(self, policy: Policy, asking: Asking, context: StageContext) -> StageResult:
        """Answer, measure, and print beside it what blind rules score."""
        rows: list[Row] = []
        answers: list[Mapping[str, Any]] = []
        lines = {}
        asked: list[Prompt] = []
        for use in self.data:
            prompts, task = self.prompts(use, context), context.tasks[use.task]
            evaluation = self.evaluation(use, context)
            said = evaluation.answer(policy, prompts, task, asking)
            [scored] = evaluation.score([Answers(prompts, said)], task, use.task)
            rows += scored.rows()
            blind = evaluation.references(prompts, training(use, context), task, use.task)
            if blind is not None:
                rows += blind.rows
                lines[use.task] = blind.figures
                asked = asked or prompts
            answers += scored.lines()
        if self.probe:
            use = self.data[0]
            model = policy.model.model  # type: ignore[attr-defined]  # a VLMPolicy
            pooled = encoder_features(model.encoder, context.view, model.bank)
            probe = linear_probe(pooled, context.split(use.dataset, "train"), context.cases(use), asked)
            rows += probe.rows()
        return StageResult(rows=tuple(rows), answers=tuple(answers), reference_lines=lines)
