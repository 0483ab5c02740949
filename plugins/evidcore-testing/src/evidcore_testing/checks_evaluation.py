"""The checks of evaluations, audits and their conditions."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Any, get_args

from evidcore.api import (
    Answers,
    Audit,
    Condition,
    Dataset,
    EvalOptions,
    EvalResult,
    Evaluation,
    Policy,
    Prompt,
    Row,
    Task,
)
from evidcore.contracts.evaluating import Role
from evidcore.evaluate.anonymized_policy import AnonymizedPolicy
from evidcore.evaluate.reference_lines import cluster_of
from evidcore_testing.clauses import raises_nothing, require

_LINE = ("prompt_id", "case_id", "patient", "task", "condition", "prompt", "text", "malformed")
_UNITS = ("", "rate", "score", "plain", "points")
_ASKING = EvalOptions(max_new_tokens=64)


class Repeats(Policy):
    """Writes the gold answers, or the same text to every prompt, and remembers what it was shown."""

    def __init__(self, task: Task, text: str | None = None) -> None:
        self.task, self.text, self.shown = task, text, list[Prompt]()

    def generate(
        self, prompts: Sequence[Prompt], *, max_new_tokens: int, temperature: float = 0.0
    ) -> list[str]:
        """Return what it repeats."""
        self.shown += prompts
        return [self.task.gold(prompt)[0] if self.text is None else self.text for prompt in prompts]

    def log_likelihoods(
        self, prompts: Sequence[Prompt], completions: Sequence[Sequence[str]]
    ) -> list[list[float]]:
        """Like the longer completion."""
        return [[-1.0 / (1 + len(text)) for text in some] for some in completions]


def check_evaluation(evaluation: Evaluation[Any], task: Task, prompts: Sequence[Prompt]) -> None:
    """Assert the contract of an evaluation, on gold answers and on empty ones.

    - it can measure the prompts, and names its headline;
    - it answers each prompt, whatever the size of a batch;
    - sets of answers are measured in order, together as alone;
    - each question has its patient, and a headline in 0..1;
    - gold answers have more of the headline than empty ones;
    - rows are sound, and a line stands for each answer;
    - blind rules do not look;
    - equal calls give equal rows.

    Args:
        evaluation: the component under test.
        task: built from its table; its answers are measured.
        prompts: of at least two cases.
    """
    refused = evaluation.refusal(task, prompts)
    clause = "it can measure the prompts, and names its headline"
    require(not refused and bool(evaluation.headline), evaluation, clause, f"{refused!r}")
    with raises_nothing(evaluation, "any text is measured", "gold and empty answers"):
        given = [
            Answers(prompts, evaluation.answer(Repeats(task, text), prompts, task, asking), condition)
            for text, condition, asking in (
                (None, "own", _ASKING),
                ("", "blank", _ASKING),
                (None, "own", dataclasses.replace(_ASKING, prompts_per_batch=1)),
            )
        ]
        together = evaluation.score(given[:2], task, "name")
        alone = [evaluation.score([item], task, "name")[0] for item in given]
    clause = "it answers each prompt, whatever the size of a batch"
    counts = [len(item.said) for item in given]
    require(counts == [len(prompts)] * 3, evaluation, clause, f"got {counts} for {len(prompts)}")
    gold, empty, small = ([row.to_json() for row in item.rows()] for item in alone)
    require(gold == small, evaluation, clause, f"{gold}, one by one {small}")
    clause = "sets of answers are measured in order, together as alone"
    result = [[row.to_json() for row in item.rows()] for item in together]
    require(result == [gold, empty], evaluation, clause, f"{result}, alone {[gold, empty]}")
    again = [row.to_json() for row in evaluation.score(given[:1], task, "name")[0].rows()]
    require(again == gold, evaluation, "equal calls give equal rows", f"{gold}, then {again}")
    for item, answers in zip(alone, given, strict=True):
        _scored_is_sound(evaluation, item, answers)
    best, worst = (sum(item.values(evaluation.headline)) for item in alone[:2])
    clause = "gold answers have more of the headline than empty ones"
    require(best > worst, evaluation, clause, f"{evaluation.headline}: {best} for gold, {worst} for empty")
    blind, unseen = (
        evaluation.references(some, lambda: prompts, task, "name")
        for some in (prompts, [prompt.with_blank_volumes() for prompt in prompts])
    )
    if blind is not None and unseen is not None:
        _values_are_sound(evaluation, blind.values, len(prompts))
        rows_are_sound(evaluation, blind.rows, len(prompts))
        clause = "blind rules do not look"
        require(
            blind.values == unseen.values, evaluation, clause, f"{blind.values}, {unseen.values} over air"
        )


def check_condition(condition: Condition, prompts: Sequence[Prompt], dataset: Dataset | None = None) -> None:
    """Assert the contract of an audit's condition.

    - it names itself and its role;
    - each question has its showing, or none;
    - only what is shown changes;
    - some question is shown otherwise;
    - equal seeds give equal showings.

    Args:
        condition: the component under test.
        prompts: of several patients.
        dataset: of the prompts.
    """
    is_named = bool(condition.says) and condition.role in get_args(Role) and condition.repeats >= 1
    require(is_named, condition, "it names itself and its role", f"{condition.says!r}, {condition.role!r}")
    with raises_nothing(condition, "it shows questions", f"{len(prompts)} prompts"):
        shown, again = (condition.show(prompts, seed=1, dataset=dataset) for _ in range(2))
    clause = "each question has its showing, or none"
    require(len(shown) == len(prompts), condition, clause, f"{len(shown)} for {len(prompts)}")
    for before, after in zip(prompts, shown, strict=True):
        is_same = after is None or after == before.showing(after.crops())
        require(is_same, condition, "only what is shown changes", f"not so for {before.id!r}")
    moved = [item for item, own in zip(shown, prompts, strict=True) if item is not None and item != own]
    require(bool(moved), condition, "some question is shown otherwise", f"none of {len(prompts)}")
    require(list(shown) == list(again), condition, "equal seeds give equal showings", "they differ")


def check_audit(audit: Audit, evaluation: Evaluation[Any], task: Task, prompts: Sequence[Prompt]) -> None:
    """Assert the contract of an audit, on a policy that never looks.

    - it asks over the case's own volumes, and over something else;
    - only what is shown differs between conditions;
    - rows are sound, and lines over own volumes hold every question;
    - its verdict says something, and the reference lines are numbers;
    - equal calls give equal rows.

    Args:
        audit: the component under test.
        evaluation: measures the answers.
        task: asked `prompts`.
        prompts: of several patients, each showing as many volumes.
    """
    text, _ = task.gold(prompts[0])
    policy = Repeats(task, text)
    with raises_nothing(audit, "any policy is audited", f"{len(prompts)} prompts"):
        result, again = (
            audit(AnonymizedPolicy(item), prompts, task, evaluation, lambda: prompts, _ASKING, "name")
            for item in (policy, Repeats(task, text))
        )
    own = {prompt.id for prompt in prompts}
    words = {(prompt.task, prompt.written()) for prompt in prompts}
    seen = {id(prompt.parts) for prompt in policy.shown}
    is_own = {id(prompt.parts) for prompt in prompts} <= seen
    clause = "it asks over the case's own volumes, and over something else"
    require(is_own and len(seen) > len(prompts), audit, clause, f"{len(seen)} for {len(prompts)} prompts")
    for prompt in policy.shown:
        is_same = (prompt.task, prompt.written()) in words
        require(is_same, audit, "only what is shown differs between conditions", f"asks {prompt.written()!r}")
    rows_are_sound(audit, result.rows(), len(prompts))
    lines = result.lines()
    _lines_are_sound(audit, lines)
    asked = {line["prompt_id"] for line in lines if line["condition"] == "own"}
    strange = {line["prompt_id"] for line in lines} - own
    clause = "lines over own volumes hold every question"
    require(
        asked == own and not strange, audit, clause, f"they lack {sorted(own - asked)}; {sorted(strange)}"
    )
    require(bool(result.verdict().strip()), audit, "its verdict says something", f"{result.verdict()!r}")
    lines_ = result.reference_lines()
    is_known = all(value is None or math.isfinite(value) for value in lines_.values())
    require(is_known, audit, "the reference lines are numbers", f"got {lines_}")
    rows = [[row.to_json() for row in item.rows()] for item in (result, again)]
    require(rows[0] == rows[1], audit, "equal calls give equal rows", f"{rows[0]}, then {rows[1]}")


def _scored_is_sound(evaluation: Evaluation[Any], scored: EvalResult, given: Answers[Any]) -> None:
    patients = tuple(map(cluster_of, given.prompts))
    clause = "each question has its patient"
    require(tuple(scored.clusters) == patients, evaluation, clause, f"got {scored.clusters}")
    for metric in (evaluation.headline, *evaluation.beside):
        _values_are_sound(evaluation, scored.values(metric), len(patients))
        clause = "a metric that audits compare has a unit"
        require(scored.unit(metric) in _UNITS, evaluation, clause, f"{metric}: {scored.unit(metric)!r}")
    rows_are_sound(evaluation, scored.rows(), len(patients))
    lines = scored.lines()
    _lines_are_sound(evaluation, lines)
    asked = [(line["prompt_id"], line["condition"]) for line in lines]
    expected = [(prompt.id, given.condition) for prompt in given.prompts]
    require(asked == expected, evaluation, "a line stands for each answer", f"{asked}, not {expected}")


def _values_are_sound(component: object, values: Sequence[float], count: int) -> None:
    is_sound = len(values) == count and all(0.0 <= value <= 1.0 for value in values)
    require(is_sound, component, "each question has a value in 0..1", f"got {values} for {count}")


def rows_are_sound(component: object, rows: Sequence[Row], most: int | None) -> None:
    """Fail unless tables and pages can show the rows."""
    require(bool(rows), component, "rows are sound: there is one", "got none")
    names = [(row.name, row.metric) for row in rows]
    require(len(set(names)) == len(names), component, "rows are sound: each has its name", f"got {names}")
    for row in rows:
        numbers = [end for end in (row.low, row.value, row.high) if end is not None]
        is_sound = all(map(math.isfinite, numbers)) and numbers == sorted(numbers)
        is_sound = is_sound and (most is None or 0 <= row.questions <= most) and row.unit in _UNITS
        is_told = row.value is not None or bool(row.note)
        require(is_sound and is_told, component, "rows are sound: numbers, units, counts", f"got {row}")
    with raises_nothing(component, "rows are sound: they are JSON", f"{names}"):
        json.dumps([row.to_json() for row in rows], allow_nan=False)


def _lines_are_sound(component: object, lines: Sequence[dict[str, Any]]) -> None:
    for line in lines:
        missing = [key for key in _LINE if key not in line]
        require(not missing, component, "a line says what was asked and answered", f"it lacks {missing}")
    with raises_nothing(component, "lines are JSON", f"{len(lines)} lines"):
        json.dumps(lines, allow_nan=False)
