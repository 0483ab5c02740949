"""Questions that are answered in a few words: task, evaluation and reward.

What is right stands in `prompt.reference["answers"]`, a list of texts of which any will do, and what was said
in `Answer.value`: a task of one's own that fills both is measured and paid like `free-text`.
"""

import collections
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from evidcore_plugin_reports.sentences import words

from evidcore.api import (
    Answer,
    Answers,
    Case,
    EvalOptions,
    EvalResult,
    Evaluation,
    Metric,
    Policy,
    Prompt,
    Reward,
    Rollout,
    Score,
    Span,
    Task,
    TextPart,
    View,
    numeric_result,
)
from evidcore.case import Turn, Verdict
from evidcore.evaluate.choice import measure_turns
from evidcore.evaluate.measuring import named_metrics
from evidcore.text.tags import inside, shortened, tag_fault

OPEN_QUESTIONS = "open_questions"  # the case's note that holds those without options
ARTICLES = frozenset({"a", "an", "the"})
UNITS = {"exact_match": "rate", "token_f1": "score"}
_ASKED_SHORT = {True: "Think, then answer in a few words.", False: "Answer in a few words."}
_ASKED_RULES = {
    True: (
        "Reason step by step inside exactly one <think> </think> pair. Then answer in a few words inside "
        "exactly one <answer> </answer> pair, and write nothing outside these two."
    ),
    False: "Answer in a few words inside exactly one <answer> </answer> pair, and write nothing outside it.",
}


class FreeText(Task):
    """Ask a case's questions without their options; the answer is a few words.

    Asked are the questions that came with a case, whose right options are then right answers, and those
    without options in `case.notes["open_questions"]`: objects with `id`, `text` and the list `answers`, as
    data set `table` gives them with `free_text = "keep"`. The seed changes nothing.

    Args:
        think: ask for `<think>…</think>` before the answer.
        rules: spell the answer format out in the prompt, for models that were not trained on it.

    Source:
        Jiang et al. 2026, MedVR, arXiv:2604.08203, is measured on VQA-RAD, SLAKE and PathVQA. Format and
        words are ours.
    """

    evaluation = "free-text"
    takes_free_questions = True

    def __init__(self, *, think: bool = True, rules: bool = False) -> None:
        self.think = think
        self.rules = rules

    def prompts(self, case: Case, view: View, seed: int) -> Sequence[Prompt]:
        given = []
        for item in case.questions:
            right = [item.options[place] for place in dict.fromkeys((item.answer, *item.true_options))]
            given.append((item.id, item.text, right))
        kept = [(one["id"], one["text"], list(one["answers"])) for one in case.notes.get(OPEN_QUESTIONS, ())]
        asked = self.put(case, view, [*given, *kept])
        kinds = [*(one.kind for one in case.questions), *[None] * len(kept)]  # what twins are without
        return [
            dataclasses.replace(one, reference={**one.reference, "finding": kind}) if kind else one
            for one, kind in zip(asked, kinds, strict=True)
        ]

    def ask(self, case: Case, view: View) -> Sequence[Prompt]:
        return self.put(case, view, [(one.id, one.text, []) for one in case.questions])

    def put(self, case: Case, view: View, questions: Sequence[tuple[str, str, list[str]]]) -> list[Prompt]:
        """Return a prompt for each question, which has an id, a text and its right answers."""
        shown = view.render(case) if questions else ()
        how = (_ASKED_RULES if self.rules else _ASKED_SHORT)[self.think]
        return [
            Prompt(
                id=f"{case.id}:{identity}",
                case=case,
                task="free-text",
                parts=(*shown, TextPart(text=f"{text}\n{how}")),
                reference={"question": text, "answers": answers},
            )
            for identity, text, answers in questions
        ]

    def gold(self, prompt: Prompt) -> tuple[str, tuple[Span, ...]]:
        right = prompt.reference["answers"][0]
        thought = f"<think>It is {right}.</think>" if self.think else ""
        return f"{thought}<answer>{right}</answer>", ()

    def parse(self, prompt: Prompt, completion: str) -> Answer:
        """Read what stands between the tags, under the strict format."""
        fault = tag_fault(completion, think=self.think)
        said = inside(completion, "answer") or ""
        if fault is None and not said:
            fault = f"the answer is {shortened(said)!r}, expected a few words"
        think = inside(completion, "think")
        return Answer(text=completion, malformed=fault, think=think, value=None if fault else said)


class FreeTextAccuracy(Reward):
    """How far a short answer is a right one. Other tasks are not applicable, malformed answers earn 0.

    Compared are words without case, punctuation and articles.

    Args:
        match: "exact" pays 1 for all words of a right answer in their order and no other; "token-f1" the F1
            of the words that the answer shares with the right one that is nearest.

    Source:
        Jiang et al. 2026, MedVR, arXiv:2604.08203, pays 1 or 0 for the answer; how free text is compared is
        not published. Normalisation as for SQuAD (Rajpurkar et al. 2016, arXiv:1606.05250).
    """

    judges = frozenset({"correctness"})

    def __init__(self, *, match: Literal["exact", "token-f1"] = "exact") -> None:
        self.match = match

    def __call__(
        self, rollouts: Sequence[Rollout], earlier: Mapping[str, Sequence[Verdict]]
    ) -> list[Score | None]:
        return [self._judge(rollout) for rollout in rollouts]

    def _judge(self, rollout: Rollout) -> Score | None:
        right, said = rollout.prompt.reference.get("answers"), rollout.answer.value
        if not right:
            return None
        if rollout.answer.malformed is not None or not isinstance(said, str):
            return Score(value=0.0, reason=rollout.answer.malformed or "no answer was read")
        found = agreement(said, right)
        value = found["exact_match" if self.match == "exact" else "token_f1"]
        return Score(value=value, parts=found, reason=f"answered {shortened(said)!r}, right is {right[0]!r}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Replied:
    """An answer, and the turns before it."""

    answer: Answer
    turns: tuple[Turn, ...] = ()


class FreeTextEvaluation(Evaluation[Replied]):
    """Exact match and token F1 of short answers, beside the answer that is most frequent in training.

    Args:
        metric: measure what was called and looked at before an answer; used are those that read "turns".
    """

    headline = "exact_match"
    beside = ("token_f1",)

    def __init__(self, *, metric: tuple[Metric, ...] = ()) -> None:
        self.metrics = named_metrics(metric)

    def answer(
        self, policy: Policy, prompts: Sequence[Prompt], task: Task, asking: EvalOptions
    ) -> list[Replied]:
        if not prompts:
            raise ValueError("there is no question to evaluate")
        said: list[Replied] = []
        for batch in asking.batches(prompts):
            written = policy.complete(batch, max_new_tokens=asking.max_new_tokens)
            said += [
                Replied(answer=task.parse(prompt, one.text), turns=one.turns)
                for prompt, one in zip(batch, written, strict=True)
            ]
        return said

    def score(self, answers: Sequence[Answers[Replied]], task: Task, name: str) -> list[EvalResult]:
        """Hold the answers against the right ones; a malformed one is wrong."""
        return [self._score(given, name) for given in answers]

    def _score(self, given: Answers[Replied], name: str) -> EvalResult:
        answers = [item.answer for item in given.said]
        turns = [item.turns for item in given.said]
        figures = [*map(_figures, given.prompts, answers)]
        plain = numeric_result(name, Answers(given.prompts, answers, given.condition), figures, UNITS)
        pairs = zip(plain.answers, turns, strict=True)
        return dataclasses.replace(
            plain,
            answers=[dataclasses.replace(record, turns=before) for record, before in pairs],
            measured=plain.measured | measure_turns(self.metrics, given.prompts, turns),
        )

    def references(
        self, prompts: Sequence[Prompt], training: Callable[[], Sequence[Prompt]], task: Task, name: str
    ) -> Evaluation.BlindRule | None:
        """Return what it scores to say each time what is right most often in training."""
        known = (one.reference.get("answers") for one in training())
        counts = collections.Counter(answers[0] for answers in known if answers)
        if not counts:
            return None
        usual = min(counts, key=lambda answer: (-counts[answer], answer))
        said = Replied(answer=Answer(text=usual, value=usual))
        scored = FreeTextEvaluation()._score(Answers(prompts, [said] * len(prompts)), name)
        rows = tuple(
            dataclasses.replace(
                row, metric=f"training_mode_{row.metric}", is_headline=False, note=f"says {usual!r} each time"
            )
            for row in scored.rows()
        )
        return Evaluation.BlindRule(
            values=scored.values(self.headline), rule="the most frequent answer in training",
            label="training_mode", rows=rows, figures={"training_mode": rows[0].value},
        )  # fmt: skip


def agreement(said: str, right: Sequence[str]) -> dict[str, float]:
    """Return exact match and token F1 of an answer with the right one that is nearest."""
    pairs = [(_normal(said), _normal(answer)) for answer in right]
    return {
        "exact_match": max(float(ours == theirs) for ours, theirs in pairs),
        "token_f1": max(_f1(ours, theirs) for ours, theirs in pairs),
    }


def _figures(prompt: Prompt, answer: Answer) -> dict[str, float]:
    right = prompt.reference.get("answers")
    if not right:
        return {}
    is_read = answer.malformed is None and isinstance(answer.value, str)
    return agreement(str(answer.value), right) if is_read else dict.fromkeys(UNITS, 0.0)


def _normal(text: str) -> list[str]:
    """Return the words that are compared; a text without any stands for itself."""
    said = words(text)
    return [word for word in said if word not in ARTICLES] or said or [text.strip()]


def _f1(ours: Sequence[str], theirs: Sequence[str]) -> float:
    shared = collections.Counter(ours) & collections.Counter(theirs)
    return 2 * shared.total() / (len(ours) + len(theirs))
