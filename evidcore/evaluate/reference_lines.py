"""Three lines beside every accuracy: uniform chance, the best blind rule, and perfect eyes.

Chance is not one in four. A rule that never sees the volume, and picks the option that was most often right
in training, beats it wherever findings differ in prevalence; and where several options are true, perfect eyes
cannot know which one the key wants. Both lines are computed from the questions' own labels.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from evidcore.case import Prompt
from evidcore.contracts import Blind, Row
from evidcore.evaluate.bootstrap import Interval, mean_interval
from evidcore.text.tags import LETTERS

TRAINING_SEEDS = (
    0,
    1,
)  # evaluation's questions, which come with the cases, and training's, which may be drawn
UNKNOWN = "which other options are true is not known"
Preference = Callable[[Prompt, str, int], float]  # an option's name and place -> how much the rule likes it


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReferenceLines:
    """Expected accuracy of three answerers, per question and on average."""

    prompt_ids: tuple[str, ...]
    clusters: tuple[str, ...]
    uniform_chance: tuple[float, ...]
    prior_only: tuple[float, ...]
    perfect_perception: tuple[float, ...] | None  # None: which other options are true is not known
    rules: Mapping[str, float]  # accuracy of every blind rule that was tried
    prior_rule: str  # the best of them

    def intervals(self) -> dict[str, Interval | None]:
        """Return each line with its patient-clustered interval; None where it is not known."""
        lines = {name: getattr(self, name) for name in ("uniform_chance", "prior_only", "perfect_perception")}
        return {
            name: None if values is None else mean_interval(values, self.clusters)
            for name, values in lines.items()
        }

    def figures(self) -> dict[str, float | None]:
        """Return the three averages as results files hold them."""
        return {
            name: None if interval is None else interval.value for name, interval in self.intervals().items()
        }

    def rows(self, name: str) -> list[Row]:
        """Return one results row per line."""
        notes = {
            "uniform_chance": "one option at random",
            "prior_only": f"best blind rule: {self.prior_rule}",
            "perfect_perception": "every finding known; one of the true options at random",
        }
        unknown = Row(
            name=name, metric="", value=None, note=UNKNOWN, questions=len(self.prompt_ids),
            patients=len(set(self.clusters)),
        )  # fmt: skip
        return [
            row(name, metric, interval, note=notes[metric])
            if interval is not None
            else dataclasses.replace(unknown, metric=metric)
            for metric, interval in self.intervals().items()
        ]

    def blind(self, name: str) -> Blind:
        """Return the best blind rule, with all three lines as its rows."""
        return Blind(
            values=self.prior_only, rule=self.prior_rule, label="prior_only", rows=tuple(self.rows(name)),
            figures=self.figures(),
        )  # fmt: skip


def cluster_of(prompt: Prompt) -> str:
    """Return what a prompt is clustered by."""
    return cluster(prompt.case.patient, prompt.case.id)


def cluster(patient: str | None, case_id: str) -> str:
    """Return the patient, or the case where no patient is known."""
    return patient if patient is not None else f"case {case_id}"


def row(name: str, metric: str, interval: Interval, *, note: str = "", **columns: Any) -> Row:
    """Return a results row from an interval; `columns` are further fields of the row."""
    return Row(
        name=name, metric=metric, value=interval.value, low=interval.low, high=interval.high,
        questions=interval.values, patients=interval.patients,
        note="; ".join(part for part in (note, interval.note) if part), **columns,
    )  # fmt: skip


def training_prompts(ask: Callable[[int], Iterable[Prompt]]) -> list[Prompt]:
    """Return what blind rules learn from: what is asked in evaluation and what in training, each once.

    Args:
        ask: returns the questions about the training cases under a seed.
    """
    found: dict[tuple[str, str, tuple[str, ...]], Prompt] = {}
    for seed in TRAINING_SEEDS:
        for prompt in ask(seed):
            reference = prompt.reference
            key = (prompt.id, str(reference.get("letter")), tuple(reference.get("options") or ()))
            found.setdefault(key, prompt)
    return list(found.values())


def reference_lines(prompts: Sequence[Prompt], training: Sequence[Prompt]) -> ReferenceLines:
    """Measure what the three answerers would score on `prompts`.

    The blind rules know the training questions with their keys and labels, and nothing of any volume. The
    best one on `prompts` is taken, so the line is a ceiling: a rule chosen beforehand could only be lower.

    Args:
        prompts: the questions, each with `options`, `letter` and `true_options` in its reference, and
            `truth_known` = False where these may be more than are named.
        training: training questions in the same form: `training_prompts`.

    Raises:
        ValueError: if there are no questions, or one has no options; names it.
    """
    if not prompts or not training:
        raise ValueError(
            f"reference lines need questions, got {len(prompts)} and {len(training)} for training"
        )
    for prompt in (*prompts, *training):
        if not prompt.reference.get("options"):
            raise ValueError(f"prompt {prompt.id!r} has no options, so it has no reference lines")
    by_rule = {
        name: tuple(_expected(prompt, prefer) for prompt in prompts)
        for name, prefer in _blind_rules(training).items()
    }
    rules = {name: sum(scores) / len(scores) for name, scores in by_rule.items()}
    is_known = all(prompt.reference.get("truth_known", True) for prompt in prompts)
    best = max(rules, key=lambda name: rules[name])
    return ReferenceLines(
        prompt_ids=tuple(prompt.id for prompt in prompts),
        clusters=tuple(cluster_of(prompt) for prompt in prompts),
        uniform_chance=tuple(1 / len(prompt.reference["options"]) for prompt in prompts),
        prior_only=by_rule[best],
        perfect_perception=tuple(_perfect(prompt) for prompt in prompts) if is_known else None,
        rules=rules,
        prior_rule=best,
    )


def answer_place(prompt: Prompt) -> int:
    """Return the place of the right option, counted from 0."""
    return LETTERS.index(prompt.reference["letter"])


def _perfect(prompt: Prompt) -> float:
    true = set(prompt.reference["true_options"]) | {answer_place(prompt)}
    return 1 / len(true)


def _expected(prompt: Prompt, prefer: Preference) -> float:
    """Return the accuracy of taking the option that is liked most, ties broken by a fair coin."""
    liking = [prefer(prompt, option, index) for index, option in enumerate(prompt.reference["options"])]
    most = max(liking)
    return 1 / liking.count(most) if liking[answer_place(prompt)] == most else 0.0


def _blind_rules(training: Sequence[Prompt]) -> dict[str, Preference]:
    """Return what can be learnt without pixels, as preferences over options."""
    right: collections.Counter[str] = collections.Counter()
    offered: collections.Counter[str] = collections.Counter()
    places: collections.Counter[int] = collections.Counter()
    right_to: collections.Counter[tuple[str, str]] = collections.Counter()
    offered_to: collections.Counter[tuple[str, str]] = collections.Counter()
    for prompt in training:
        options, words = prompt.reference["options"], _words(prompt)
        right_to[words, options[answer_place(prompt)]] += 1
        offered_to.update((words, option) for option in options)
        right[options[answer_place(prompt)]] += 1
        offered.update(options)
        places[answer_place(prompt)] += 1
    prevalence = _prevalence(training)
    return {
        "most often right in training": lambda _, option, __: right[option],
        "most often right when offered": lambda _, option, __: right[option] / max(offered[option], 1),
        "most often right to the same words": lambda prompt, option, _: (
            right_to[_words(prompt), option] / max(offered_to[_words(prompt), option], 1)
        ),
        "most prevalent in training": lambda _, option, __: prevalence.get(option, 0.0),
        "letter most often right": lambda _, __, place: places[place],
    }


def _words(prompt: Prompt) -> str:
    """Return the question without its options: "Where is the liver?" has one answer in most people."""
    return str(prompt.reference.get("question", ""))


def _prevalence(training: Iterable[Prompt]) -> dict[str, float]:
    """Return how often each finding is present among the training cases that know of it."""
    cases = {prompt.case.id: prompt.case for prompt in training}
    present: collections.Counter[str] = collections.Counter()
    known: collections.Counter[str] = collections.Counter()
    for case in cases.values():
        for finding in case.findings:
            known[finding.name] += finding.state != "uncertain"
            present[finding.name] += finding.state == "present"
    return {name: present[name] / count for name, count in known.items() if count}
