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

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from evidcore.builtin.scorers import TokenF1
from evidcore.case import Prompt
from evidcore.contracts import Policy, Scorer, Task
from evidcore.evaluate.answered import Answered, Condition, asked, batches, unknown_patients
from evidcore.evaluate.reference_lines import ReferenceLines, row
from evidcore.evaluate.statistics import mean_interval, ratio_interval
from evidcore.text.choices import LETTERS


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChoiceAnswer(Answered):
    """One question answered: a line of `answers/<stage>.jsonl`."""

    choice: str | None
    lenient_choice: str | None
    rescue_choice: str | None
    log_likelihood_choice: str | None  # None: not asked for
    verdict_log_likelihood_choice: str | None
    answer: str  # the right letter
    finding: str  # what it stands for
    images: tuple[str, ...]

    @property
    def correct(self) -> bool:
        """Tell whether the strict reading is right."""
        return self.choice == self.answer

    def line(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {**dataclasses.asdict(self), "images": list(self.images), "correct": self.correct}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChoiceResult:
    """All answers of one policy to one task's questions."""

    name: str
    answers: tuple[ChoiceAnswer, ...]

    @property
    def clusters(self) -> tuple[str, ...]:
        """Return whose question each is."""
        return tuple(answer.cluster for answer in self.answers)

    def correct(self, reading: str = "choice") -> tuple[float, ...]:
        """Return 1 or 0 per question.

        Args:
            reading: "choice" (strict), "lenient_choice", "rescue_choice", "log_likelihood_choice" or
                "verdict_log_likelihood_choice".
        """
        return tuple(float(getattr(answer, reading) == answer.answer) for answer in self.answers)

    def rows(self, *, lines: ReferenceLines | None = None) -> list[dict[str, Any]]:
        """Return the results rows: accuracies, format, then strict accuracy by finding, then `lines`."""
        note = unknown_patients(answer.patient for answer in self.answers)
        found = [
            row(self.name, metric, mean_interval(self.correct(reading), self.clusters), note=note)
            for metric, reading in _ACCURACIES.items()
            if metric in ALWAYS or all(getattr(answer, reading) is not None for answer in self.answers)
        ]
        valid = [float(answer.malformed is None) for answer in self.answers]
        found.append(row(self.name, "format_rate", mean_interval(valid, self.clusters)))
        if any(valid):
            right = [hit * ok for hit, ok in zip(self.correct(), valid, strict=True)]
            given = ratio_interval(right, valid, self.clusters)
            found.append(row(self.name, "accuracy_given_valid_format", given))
        for finding in sorted({answer.finding for answer in self.answers}):
            here = [answer for answer in self.answers if answer.finding == finding]
            interval = mean_interval([float(one.correct) for one in here], [one.cluster for one in here])
            found.append(row(self.name, f"strict_accuracy/{finding}", interval))
        return found + (lines.rows(self.name) if lines else [])


_ACCURACIES = {
    "strict_accuracy": "choice",
    "lenient_accuracy": "lenient_choice",
    "rescue_accuracy": "rescue_choice",
    "log_likelihood_accuracy": "log_likelihood_choice",
    "verdict_log_likelihood_accuracy": "verdict_log_likelihood_choice",
}
ALWAYS = ("strict_accuracy", "lenient_accuracy", "rescue_accuracy")


def evaluate_choice(
    policy: Policy,
    prompts: Sequence[Prompt],
    task: Task,
    *,
    max_new_tokens: int,
    name: str | None = None,
    condition: Condition = "own",
    batch_size: int = 64,
    likelihoods: bool = True,
    rescue: Scorer | None = None,
) -> ChoiceResult:
    """Answer `prompts` greedily and read the answers in every way.

    Args:
        policy: the model.
        prompts: questions of `task`.
        task: reads the completions.
        max_new_tokens: most tokens of an answer.
        name: what results call it; the prompts' task if left out.
        condition: which volumes the prompts show.
        batch_size: prompts shown at once.
        likelihoods: also ask for option likelihoods (one pass more per option and form).
        rescue: similarity for the rescue reading; `token-f1` if left out.

    Raises:
        ValueError: if there are no prompts, or one has no options; names it.
    """
    if not prompts:
        raise ValueError("there is no question to evaluate")
    for prompt in prompts:
        if not prompt.reference.get("options"):
            raise ValueError(f"prompt {prompt.id!r} has no options; evaluate it as a report")
    similarity = rescue or TokenF1()
    answers: list[ChoiceAnswer] = []
    for batch in batches(prompts, batch_size):
        texts = policy.generate(batch, max_new_tokens=max_new_tokens)
        direct, verdict = _likeliest(policy, batch, task) if likelihoods else ([None] * len(batch),) * 2
        for prompt, text, bare, full in zip(batch, texts, direct, verdict, strict=True):
            read = task.parse(prompt, text)
            answers.append(
                ChoiceAnswer(
                    **asked(prompt, condition),
                    text=text,
                    malformed=read.malformed,
                    choice=read.choice,
                    lenient_choice=read.lenient_choice,
                    rescue_choice=read.lenient_choice or rescued(text, prompt, similarity),
                    log_likelihood_choice=bare,
                    verdict_log_likelihood_choice=full,
                    answer=prompt.reference["letter"],
                    finding=prompt.reference["finding"],
                    images=tuple(crop.uri() for crop in prompt.crops()),
                )
            )
    return ChoiceResult(name=name or prompts[0].task, answers=tuple(answers))


def rescued(text: str, prompt: Prompt, similarity: Scorer) -> str | None:
    """Return the letter of the option most like what was written after thinking, None on a tie."""
    said = text.rpartition("</think>")[2] or text
    options = prompt.reference["options"]
    asked = [prompt.words()] * len(options)
    scores = [score or 0.0 for score in similarity([said] * len(options), options, asked)]
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
        [task.gold(as_if(prompt, place))[0] for place in range(count)]
        for prompt, count in zip(prompts, counts, strict=True)
    ]
    direct = policy.log_likelihoods(prompts, bare)
    return direct, None if whole == bare else policy.log_likelihoods(prompts, whole)


def _likeliest(
    policy: Policy, prompts: Sequence[Prompt], task: Task
) -> tuple[list[str | None], list[str | None]]:
    """Return the likeliest letter of each prompt, as a bare answer and as a whole right completion."""
    direct, verdict = option_log_likelihoods(policy, prompts, task)
    return _best(direct), [None] * len(prompts) if verdict is None else _best(verdict)


def _best(likelihoods: Sequence[Sequence[float]]) -> list[str | None]:
    return [LETTERS[max(range(len(row)), key=row.__getitem__)] for row in likelihoods]
