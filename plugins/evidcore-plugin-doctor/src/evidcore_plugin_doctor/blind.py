"""The three reference lines of a data set's questions, before anything is trained."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from evidcore_plugin_reports.blind import Question, best_findings

from evidcore.api import Case, EncoderInput, Prompt, Task, View, VisualPart, mean_interval
from evidcore.builtin.choice import Choice
from evidcore.case import Part, Split
from evidcore.contracts import Grid
from evidcore.contracts.evaluating import Interval
from evidcore.evaluate.reference_lines import UNKNOWN, cluster_of, reference_lines, training_prompts
from evidcore_plugin_doctor.listing import Cases

DRAWS = 5  # sets of random distractors that are averaged: one alone moves the best rule by two points
Policy = Literal["random", "negatives"]
POLICIES: Mapping[str, Policy] = {"random distractors": "random", "negatives": "negatives"}


class BlindView(View):
    """Shows nothing of a case: what is asked about it is enough here."""

    def render(self, case: Case) -> tuple[Part, ...]:
        return ()

    def size_zyx(self, part: VisualPart, encoder: EncoderInput) -> Grid:
        raise ValueError("nothing is shown, so nothing has a size")

    def to_source(self, part: VisualPart, box: Sequence[float]) -> None:
        """Return no box: nothing is shown."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked:
    """Questions by split, in one way of asking."""

    name: str
    prompts: Mapping[Split, Sequence[Prompt]]
    training: Sequence[Prompt]  # what the blind rules learn from


def ask(cases: Cases, tasks: Mapping[str, Task]) -> list[Asked]:
    """Return every way in which questions can be asked about the cases.

    - `given`: the questions that came with the cases.
    - `random distractors` and `negatives`: drawn from the findings, one for every present finding.
    - `report`: which findings a case has, of all at once, scored by F1 as reports are.
    - the multiple-choice tasks of a recipe, each as evaluation would ask it.
    """
    given = {
        split: _prompts(Choice(), [case for case in some if case.questions]) for split, some in cases.items()
    }
    prompts = {"given": given}
    for name, distractors in POLICIES.items():
        task = Choice(distractors=distractors, questions_per_case=0)
        prompts[name] = {split: _drawn(some, task) for split, some in cases.items()}
    prompts["report"] = {
        split: [Prompt(id=case.id, case=case, task="report", parts=()) for case in some if case.findings]
        for split, some in cases.items()
    }
    ways = [Asked(name=name, prompts=some, training=some.get("train", ())) for name, some in prompts.items()]
    for name, asking in tasks.items():
        asked = {split: _prompts(asking, some) for split, some in cases.items()}
        training = training_prompts(partial(_prompts, asking, cases.get("train", ())))
        every = [prompt for prompts in (*asked.values(), training) for prompt in prompts]
        if all(prompt.reference.get("options") for prompt in every):
            ways.append(Asked(name=name, prompts=asked, training=training or asked.get("train", ())))
    return [way for way in ways if any(way.prompts.values())]


def _prompts(task: Task, cases: Sequence[Case], seed: int = 0) -> list[Prompt]:
    return [prompt for case in cases for prompt in task.prompts(case, BlindView(), seed)]


def _drawn(cases: Sequence[Case], task: Choice) -> list[Prompt]:
    """Draw the questions of each case several times; above seed 0, given questions are not asked."""
    known = [case for case in cases if case.findings]
    return [
        dataclasses.replace(prompt, id=f"{prompt.id}/{draw}")
        for draw in range(1, DRAWS + 1)
        for prompt in _prompts(task, known, draw)
    ]


def lines(asked: Asked) -> Iterator[dict[str, Any]]:
    """Yield the reference lines of each split that can be measured on, with intervals by patient.

    The blind rules learn from the training split. A set without another split is measured on the questions
    that the rules have learnt from, and says so.
    """
    prompts_of = {split: prompts for split, prompts in asked.prompts.items() if prompts}
    measured = {split: prompts for split, prompts in prompts_of.items() if split != "train"}
    for split, prompts in (measured or prompts_of).items():
        note = "" if measured else "the blind rules learnt from the same questions"
        if not asked.training:
            note = f"no training questions: the blind rules learnt from the {split} questions themselves"
        rule, rules, intervals = _measured(prompts, asked.training or prompts)
        why = UNKNOWN if prompts[0].reference.get("options") else "for questions with options alone"
        unknown = {"value": None, "low": None, "high": None, "note": why}
        yield {
            "asked": asked.name,
            "split": split,
            "questions": len(prompts),
            "patients": len(set(map(cluster_of, prompts))),
            "prior_rule": rule,
            "rules": rules,
            "note": note,
        } | {
            name: {key: getattr(interval, key) for key in unknown} if interval else unknown
            for name, interval in intervals.items()
        }


def _measured(
    prompts: Sequence[Prompt], training: Sequence[Prompt]
) -> tuple[str, dict[str, float], Mapping[str, Interval | None]]:
    """Return the best blind rule, what each scores, and the lines; of reports F1, without the other lines."""
    if prompts[0].reference.get("options"):
        result = reference_lines(prompts, training)
        return result.prior_rule, dict(result.rules), result.intervals()
    rule, affirmed = best_findings(prompts, training) or ("", [frozenset[str]()] * len(prompts))
    values = [Question.of(prompt).score(item) for prompt, item in zip(prompts, affirmed, strict=True)]
    interval = mean_interval(values, [*map(cluster_of, prompts)])
    return (
        rule,
        {rule: interval.value},
        {"uniform_chance": None, "prior_only": interval, "perfect_perception": None},
    )
