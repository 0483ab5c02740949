"""Evaluate choice questions: three readings of the answer, option likelihoods, and the figures they give.

*Strict* counts a letter only under the task's format; it is the headline. *Lenient* takes a letter that a
tolerant reader finds. *Rescue* also takes, where no letter can be found, the option most like what was
written; it turns non-answers into guesses and is never the headline. *Log-likelihood* ignores what was
written: it asks which option the policy finds most likely, so learning the format alone does not move it. Two
forms of it:

- `log_likelihood`: the likelihood of `<answer>X</answer>` right after the prompt, for each letter X.
- `verdict_log_likelihood` (tasks that ask for thinking): the likelihood of the whole right completion as it
  would be if X alone were true. It reads what the policy sees where the policy was taught to say it.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from evidcore.case import Prompt, Turn
from evidcore.contracts import (
    Answers,
    BlindRule,
    EvalOptions,
    EvalResult,
    Evaluation,
    Labeler,
    Metric,
    Policy,
    Row,
    Scorer,
    Task,
    TextSample,
)
from evidcore.evaluate.answer_record import AnswerRecord, question_of
from evidcore.evaluate.bootstrap import mean_interval, ratio_interval
from evidcore.evaluate.measuring import Measurement, NamedMetric, measure, named_metrics
from evidcore.evaluate.numeric_result import NumericResult
from evidcore.evaluate.reference_lines import reference_lines
from evidcore.registry import blame
from evidcore.registry.factory import offer_of
from evidcore.text.tags import LETTERS


def measure_thinking(
    metrics: Iterable[NamedMetric], prompts: Sequence[Prompt], answers: Sequence[str], task: Task
) -> Measurement:
    """Measure the thinking of answers against the reports of their cases, by metrics that read "think".

    An answer without thinking counts as one that thought nothing, unless none has any: then nothing was asked
    for, and nothing is measured.
    """
    thoughts = [task.parse(prompt, text).think for prompt, text in zip(prompts, answers, strict=True)]
    if not any(thoughts):
        metrics = ()
    texts = [
        TextSample(case=prompt.case, asked=prompt.written(), text=thought or "", reference=prompt.case.report)
        for prompt, thought in zip(prompts, thoughts, strict=True)
    ]
    return measure(metrics, texts, "think")


def measure_turns(
    metrics: Iterable[NamedMetric], prompts: Sequence[Prompt], turns: Sequence[Sequence[Turn]]
) -> Measurement:
    """Measure what was called and looked at before answers, by those of the metrics that read "turns"."""
    texts = [
        TextSample(
            case=prompt.case, asked=prompt.written(), text="", reference=None, turns=tuple(entry),
            shown=prompt.crops(),
        )
        for prompt, entry in zip(prompts, turns, strict=True)
    ]  # fmt: skip
    return measure(metrics, texts, "turns")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChoiceAnswer(AnswerRecord):
    """One question answered."""

    choice: str | None
    lenient_choice: str | None
    rescue_choice: str | None
    log_likelihood_choice: str | None  # None: not asked for
    verdict_log_likelihood_choice: str | None
    answer: str  # the right letter
    finding: str  # what it stands for

    @property
    def correct(self) -> bool:
        """Tell whether the strict reading is right."""
        return self.choice == self.answer

    def line(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {**super().line(), "correct": self.correct}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChoiceResult(NumericResult):
    """All answers to one task's questions, and what metrics say of thinking and turns before them."""

    answers: tuple[ChoiceAnswer, ...]

    @property
    def asked_about(self) -> tuple[str, ...]:
        """Return the finding that each question's right option stands for."""
        return tuple(answer.finding for answer in self.answers)

    def values(self, metric: str) -> tuple[float, ...]:
        """Return 1 or 0 per question: is the answer right, or is it in its format?"""
        if metric == "format_rate":
            return super().values(metric)
        return tuple(float(getattr(answer, ACCURACIES[metric]) == answer.answer) for answer in self.answers)

    def rows(self) -> list[Row]:
        """Return accuracies, format, strict accuracy by finding, then what metrics say of the rest."""
        rows = [
            self.mean_row(metric, is_headline=metric in _AT_A_GLANCE)
            for metric, reading in ACCURACIES.items()
            if metric in ALWAYS or all(getattr(answer, reading) is not None for answer in self.answers)
        ]
        rows.append(self.mean_row("format_rate"))
        if any(valid := self.values("format_rate")):
            right = [hit * ok for hit, ok in zip(self.values("strict_accuracy"), valid, strict=True)]
            given = ratio_interval(right, valid, self.clusters)
            rows.append(Row.of(self.name, "accuracy_given_valid_format", given, is_headline=True))
        for finding in sorted({answer.finding for answer in self.answers}):
            here = [answer for answer in self.answers if answer.finding == finding]
            interval = mean_interval([float(item.correct) for item in here], [item.cluster for item in here])
            rows.append(Row.of(self.name, f"strict_accuracy/{finding}", interval))
        return rows + self.measured.rows(self.name, self.clusters)


ACCURACIES = {
    "strict_accuracy": "choice",
    "lenient_accuracy": "lenient_choice",
    "rescue_accuracy": "rescue_choice",
    "log_likelihood_accuracy": "log_likelihood_choice",
    "verdict_log_likelihood_accuracy": "verdict_log_likelihood_choice",
}
ALWAYS = ("strict_accuracy", "lenient_accuracy", "rescue_accuracy")
_AT_A_GLANCE = ("strict_accuracy", "log_likelihood_accuracy", "verdict_log_likelihood_accuracy")


class ChoiceEvaluation(Evaluation[ChoiceAnswer]):
    """Read answers to choice questions in every way, beside blind rules and perfect eyes.

    Args:
        rescue: similarity for the rescue reading.
        labeler: given to metrics that ask for one; left out, they take their own.
        metric: measure what was thought and looked at before an answer; used are those that read "think" or
            "turns".
    """

    headline = "strict_accuracy"
    beside = ("format_rate",)

    def __init__(
        self,
        *,
        rescue: Scorer = {"use": "token-f1"},  # type: ignore[assignment]  # noqa: B006  # a recipe's table
        labeler: Labeler | None = None,
        metric: tuple[Metric, ...] = (),
    ) -> None:
        self.rescue = rescue
        self.metrics = named_metrics(metric)

    def refusal(self, task: Task, prompts: Sequence[Prompt]) -> str:
        """Return which prompt has no options, if one has none."""
        bare = next((item for item in prompts if not item.reference.get("options")), None)
        return "" if bare is None else f"prompt {bare.id!r} has no options, so it is no choice"

    def ready(self) -> None:
        components: list[Scorer | Metric] = [self.rescue, *(named.metric for named in self.metrics)]
        for component in components:
            with blame(offer_of(component), "looking for what it needs"):
                component.ready()

    def answer(
        self, policy: Policy, prompts: Sequence[Prompt], task: Task, asking: EvalOptions
    ) -> list[ChoiceAnswer]:
        """Answer greedily and read the answers in every way."""
        if not prompts:
            raise ValueError("there is no question to evaluate")
        if wrong := self.refusal(task, prompts):
            raise ValueError(wrong)
        answers: list[ChoiceAnswer] = []
        for batch in asking.batches(prompts):
            written = policy.complete(batch, max_new_tokens=asking.max_new_tokens)
            both = (None, None) if asking.headline_only else option_log_likelihoods(policy, batch, task)
            direct, verdict = (_likeliest(some, len(batch)) for some in both)
            for prompt, item, bare, full in zip(batch, written, direct, verdict, strict=True):
                text = item.text
                read = task.parse(prompt, text)
                answers.append(
                    ChoiceAnswer(
                        **question_of(prompt),
                        text=text,
                        malformed=read.malformed,
                        choice=read.choice,
                        lenient_choice=read.lenient_choice,
                        rescue_choice=read.lenient_choice or rescued(text, prompt, self.rescue),
                        log_likelihood_choice=bare,
                        verdict_log_likelihood_choice=full,
                        answer=prompt.reference["letter"],
                        finding=prompt.reference["finding"],
                        turns=item.turns,
                    )
                )
        return answers

    def score(self, answers: Sequence[Answers[ChoiceAnswer]], task: Task, name: str) -> list[EvalResult]:
        """Count right answers, and measure the thinking before them."""
        return [
            ChoiceResult(
                name=name,
                answers=tuple(dataclasses.replace(one, condition=given.condition) for one in given.said),
                measured=measure_thinking(self.metrics, given.prompts, [one.text for one in given.said], task)
                | measure_turns(self.metrics, given.prompts, [one.turns for one in given.said]),
            )
            for given in answers
        ]

    def references(
        self, prompts: Sequence[Prompt], training: Callable[[], Sequence[Prompt]], task: Task, name: str
    ) -> BlindRule:
        """Return uniform chance, the best blind rule, and perfect perception."""
        return reference_lines(prompts, training()).blind(name)


def rescued(text: str, prompt: Prompt, similarity: Scorer) -> str | None:
    """Return the letter of the option most like what was written after thinking, None on a tie."""
    answer = text.rpartition("</think>")[2] or text
    options = prompt.reference["options"]
    question_of = [prompt.words()] * len(options)
    scores = [score or 0.0 for score in similarity([answer] * len(options), options, question_of)]
    best = max(scores)
    return LETTERS[scores.index(best)] if scores.count(best) == 1 else None


def as_if(prompt: Prompt, place: int) -> Prompt:
    """Return the question as it would be if option number `place` alone were true."""
    options = prompt.reference["options"]
    changed = {"letter": LETTERS[place], "true_options": [place], "finding": options[place]}
    return dataclasses.replace(prompt, reference={**prompt.reference, **changed})


def option_log_likelihoods(
    policy: Policy, prompts: Sequence[Prompt], task: Task
) -> tuple[list[list[float]], list[list[float]] | None]:
    """Return the log-likelihood of each option of each prompt in both forms, in nats.

    The second is None where a whole right completion is no more than the bare letter.
    """
    counts = [len(prompt.reference["options"]) for prompt in prompts]
    bare = [[f"<answer>{letter}</answer>" for letter in LETTERS[:count]] for count in counts]
    whole = [
        [task.gold(as_if(prompt, index))[0] for index in range(count)]
        for prompt, count in zip(prompts, counts, strict=True)
    ]
    direct = policy.log_likelihoods(prompts, bare)
    return direct, None if whole == bare else policy.log_likelihoods(prompts, whole)


def _likeliest(likelihoods: Sequence[Sequence[float]] | None, count: int) -> Sequence[str | None]:
    """Return the letter of each prompt's likeliest option, None of `count` prompts that were not asked."""
    if likelihoods is None:
        return [None] * count
    return [LETTERS[max(range(len(row)), key=row.__getitem__)] for row in likelihoods]
