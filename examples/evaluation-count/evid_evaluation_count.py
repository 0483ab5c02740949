"""Ask how many findings are present, measure the number, and audit it against volumes of air."""

import dataclasses
import re
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from evidcore.api import (
    Answer,
    Answers,
    Audit,
    Case,
    EvalOptions,
    EvalResult,
    Evaluation,
    Policy,
    Prompt,
    Row,
    Span,
    Task,
    TextPart,
    View,
    mean_interval,
    numeric_result,
    paired_interval,
)

UNITS = {"exact_match": "rate", "absolute_error": "plain"}  # the error is in findings


class CountFindings(Task):
    """Ask for the number of findings that are present."""

    evaluation = "count"

    def prompts(self, case: Case, view: View, seed: int) -> Sequence[Prompt]:
        """Ask once about a case whose findings are known."""
        text = TextPart(text=f"How many of these are present? {', '.join(f.name for f in case.findings)}")
        parts = (*view.render(case), text)
        prompt = Prompt(id=f"{case.id}:count", case=case, task="count-findings", parts=parts)
        return [prompt] if case.findings else []

    def gold(self, prompt: Prompt) -> tuple[str, tuple[Span, ...]]:
        """Return the number in its tag."""
        return f"<answer>{len(prompt.case.present())}</answer>", ()

    def parse(self, prompt: Prompt, completion: str) -> Answer:
        """Find the tag with a number in it, and nothing else."""
        found = re.fullmatch(r"\s*<answer>\s*(\d{1,4})\s*</answer>\s*", completion)
        if found is None:
            return Answer(text=completion, malformed=f"no number in <answer>: {completion[:40]!r}")
        return Answer(text=completion, value=int(found[1]))


def errors(prompt: Prompt, answer: Answer) -> dict[str, float]:
    """Return how far the number is from the right one; an answer without a number has no error."""
    right = len(prompt.case.present())
    error = {"absolute_error": float(abs(answer.value - right))} if isinstance(answer.value, int) else {}
    return {"exact_match": float(answer.value == right), **error}


class Count(Evaluation[Answer]):
    """Exact match and absolute error of a number, beside the median number of the training cases."""

    headline = "exact_match"

    def score(self, answers: Sequence[Answers[Answer]], task: Task, name: str) -> list[EvalResult]:
        """Hold the numbers against the right ones."""
        return [
            numeric_result(name, given, [*map(errors, given.prompts, given.said)], UNITS) for given in answers
        ]

    def references(
        self, prompts: Sequence[Prompt], training: Callable[[], Sequence[Prompt]], task: Task, name: str
    ) -> Evaluation.BlindRule:
        """Return what it scores to say the training median every time."""
        usual = statistics.median_low([len(prompt.case.present()) for prompt in training()])
        said = [Answer(text=f"<answer>{usual}</answer>", value=usual)] * len(prompts)
        [scored] = self.score([Answers(prompts, said)], task, name)
        rows = tuple(
            dataclasses.replace(
                one, metric=f"training_median_{one.metric}", is_headline=False, note=f"says {usual} each time"
            )
            for one in scored.rows()
        )
        return Evaluation.BlindRule(
            values=scored.values(self.headline), rule="the median number in training",
            label="training_median", rows=rows, figures={"training_median": rows[0].value},
        )  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compared(Audit.AuditResult):
    """The same questions over own volumes and over air."""

    name: str
    metric: str
    own: EvalResult
    blank: EvalResult

    def rows(self) -> list[Row]:
        """Return both figures and their difference."""
        own, blank = self.own.values(self.metric), self.blank.values(self.metric)
        shown = [
            Row.of(
                f"{condition} volumes", self.metric, mean_interval(values, self.own.clusters), task=self.name,
                condition=condition, unit=self.own.unit(self.metric), is_headline=True,
            )
            for condition, values in (("own", own), ("blank", blank))
        ]  # fmt: skip
        moved = paired_interval(own, blank, self.own.clusters)
        return [*shown, Row.of(self.name, "own_minus_blank", moved, unit="points")]

    def lines(self) -> list[dict[str, Any]]:
        """Return the answers under both conditions."""
        return [*self.own.lines(), *self.blank.lines()]

    def verdict(self) -> str:
        """Say whether the score needs the volume."""
        *_, moved = self.rows()
        said = f"{100 * (moved.value or 0.0):+.1f} points over own volumes against air"
        if moved.low is not None and moved.low > 0:
            return f"The volume is used: {said}."
        return f"No sign that the volume is used: {said}."


class OwnAgainstBlank(Audit):
    """Ask any evaluation's questions over own volumes and over air."""

    def __call__(
        self,
        policy: Policy,
        prompts: Sequence[Prompt],
        task: Task,
        evaluation: Evaluation[Any],
        training: Callable[[], Sequence[Prompt]],
        asking: EvalOptions,
        name: str,
        blind_arm: Policy | None = None,
    ) -> Compared:
        """Ask twice, and compare the headline."""
        sides = {"own": prompts, "blank": [prompt.with_blank_volumes() for prompt in prompts]}
        given = [
            Answers(some, evaluation.answer(policy, some, task, asking), condition)
            for condition, some in sides.items()
        ]
        own, blank = evaluation.score(given, task, name)
        return Compared(name=name, metric=evaluation.headline, own=own, blank=blank)
