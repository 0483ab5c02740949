"""Evaluation `majority-choice`: of several sampled answers to a choice question the most frequent counts."""

import collections
import dataclasses
from collections.abc import Sequence
from typing import Annotated, cast

from annotated_types import Ge, Gt

from evidcore.api import Answers, EvalOptions, EvalResult, Labeler, Metric, Policy, Prompt, Scorer, Task
from evidcore.contracts import Completion
from evidcore.evaluate.choice import ChoiceAnswer, ChoiceEvaluation, ChoiceResult
from evidcore.evaluate.measuring import Measurement, TextFigures

UNITS = {"sample_accuracy": "rate", "agreement": "rate"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class VotedAnswer(ChoiceAnswer):
    """The answer that most samples gave, with the letter of each; None for one out of its format."""

    votes: tuple[str | None, ...]


class MajorityChoice(ChoiceEvaluation):
    """As `choice`, of the answer that most of several samples give.

    Samples out of their format have no vote. Of letters with equally many votes the one drawn first counts;
    where none has any, the first sample stands. What is measured of thinking and turns is of the first sample
    that chose the winner. Beside it: `sample_accuracy`, the share of samples that are right, and `agreement`,
    the share that chose what won. Lines keep the votes; data set `sometimes-right` goes by them.

    Args:
        samples: answers to a question.
        temperature: of sampling.
        rescue: as of `choice`.
        labeler: as of `choice`.
        metric: as of `choice`.

    Source:
        Jiang et al. 2026, MedVR, arXiv:2604.08203, shows accuracy over numbers of sampled trajectories.
        Majority voting is that of Wang et al. 2022, Self-Consistency, arXiv:2203.11171.
    """

    def __init__(
        self,
        *,
        samples: Annotated[int, Ge(1)] = 8,
        temperature: Annotated[float, Gt(0)] = 1.0,
        rescue: Scorer = {"use": "token-f1"},  # type: ignore[assignment]  # noqa: B006  # a recipe's table
        labeler: Labeler | None = None,
        metric: tuple[Metric, ...] = (),
    ) -> None:
        super().__init__(rescue=rescue, labeler=labeler, metric=metric)
        self.samples, self.temperature = samples, temperature

    def answer(
        self, policy: Policy, prompts: Sequence[Prompt], task: Task, asking: EvalOptions
    ) -> list[ChoiceAnswer]:
        """Sample the answers, and read those that won as `choice` reads answers."""
        voting = _Voting(policy, task, self.samples, self.temperature)
        won = super().answer(voting, prompts, task, asking)
        pairs = zip(won, voting.votes, strict=True)
        return [VotedAnswer(**vars(item), votes=votes) for item, votes in pairs]

    def score(self, answers: Sequence[Answers[ChoiceAnswer]], task: Task, name: str) -> list[EvalResult]:
        """Count right answers and right samples."""
        scored = cast(list[ChoiceResult], super().score(answers, task, name))
        counted = [_counted(cast(Sequence[VotedAnswer], item.answers)) | item.measured for item in scored]
        pairs = zip(scored, counted, strict=True)
        return [dataclasses.replace(item, measured=measured) for item, measured in pairs]


class _Voting(Policy):
    """A policy that answers as most of its samples do; it keeps the votes on what it was asked, in order."""

    def __init__(self, policy: Policy, task: Task, samples: int, temperature: float) -> None:
        self._policy, self._task, self._samples, self._temperature = policy, task, samples, temperature
        self.votes: list[tuple[str | None, ...]] = []

    def generate(
        self, prompts: Sequence[Prompt], *, max_new_tokens: int, temperature: float = 0.0
    ) -> list[str]:
        return [item.text for item in self.complete(prompts, max_new_tokens=max_new_tokens)]

    def complete(
        self, prompts: Sequence[Prompt], *, max_new_tokens: int, temperature: float = 0.0
    ) -> list[Completion]:
        """Return the answers that won; the temperature of the votes is its own."""
        # what is drawn follows from a prompt's id: each sample needs one
        drawn = [
            dataclasses.replace(prompt, id=f"{prompt.id}/sample-{number}")
            for prompt in prompts
            for number in range(self._samples)
        ]
        said = self._policy.complete(drawn, max_new_tokens=max_new_tokens, temperature=self._temperature)
        won = []
        for start, prompt in zip(range(0, len(said), self._samples), prompts, strict=True):
            own = said[start : start + self._samples]
            votes = tuple(self._task.parse(prompt, item.text).choice for item in own)
            counts = collections.Counter(vote for vote in votes if vote is not None)
            first = votes.index(counts.most_common(1)[0][0]) if counts else 0
            won.append(own[first])
            self.votes.append(votes)
        return won

    def log_likelihoods(
        self, prompts: Sequence[Prompt], completions: Sequence[Sequence[str]]
    ) -> list[list[float]]:
        return self._policy.log_likelihoods(prompts, completions)


def _counted(answers: Sequence[VotedAnswer]) -> Measurement:
    """Return what the samples of each question say."""
    texts = []
    for item in answers:
        right = item.votes.count(item.answer) / len(item.votes)
        agreed = item.votes.count(item.choice) / len(item.votes) if item.choice else 0.0
        texts.append(TextFigures(figures={"sample_accuracy": right, "agreement": agreed}))
    return Measurement(texts=tuple(texts), units=UNITS, notes={}, sources={name: name for name in UNITS})
