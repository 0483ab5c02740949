"""The checks of evaluations, audits and their conditions."""

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
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
from evidcore.contracts.evaluating import AuditResult, Role
from evidcore.evaluate.eval_stage import AnonymizedPolicy
from evidcore.evaluate.reference_lines import cluster_of
from evidcore_testing.clauses import Clauses

_LINE = ("prompt_id", "case_id", "patient", "task", "condition", "prompt", "text", "malformed")
_UNITS = ("", "rate", "score", "plain", "points")
_ASKING = EvalOptions(max_new_tokens=64)


class Repeats(Policy):
    """Writes the gold answers, or the same text to every prompt, and remembers what it was shown."""

    def __init__(self, task: Task, text: str | None = None) -> None:
        self.say: Callable[[Prompt], str] = lambda prompt: task.gold(prompt)[0] if text is None else text
        self.task, self.text, self.shown = task, text, list[Prompt]()

    def generate(
        self, prompts: Sequence[Prompt], *, max_new_tokens: int, temperature: float = 0.0
    ) -> list[str]:
        self.shown += prompts
        return [self.say(prompt) for prompt in prompts]

    def log_likelihoods(
        self, prompts: Sequence[Prompt], completions: Sequence[Sequence[str]]
    ) -> list[list[float]]:
        return [[-1.0 / (1 + len(text)) for text in some] for some in completions]


class Says(Repeats):
    """Answers each prompt by a function of it."""

    def __init__(self, say: Callable[[Prompt], str]) -> None:
        self.say, self.shown = say, list[Prompt]()


def check_evaluation(evaluation: Evaluation[Any], task: Task, prompts: Sequence[Prompt]) -> None:
    """Assert the contract of an evaluation, on gold answers and on empty ones.

    - it can measure the prompts, and names its headline;
    - it answers each prompt, whatever the size of a batch;
    - sets of answers are measured in order, together as alone;
    - each question has its patient, and a headline in 0..1;
    - gold answers have more of the headline than empty ones;
    - rows are sound, and a line stands for each answer;
    - a rule that does not look stands beside it, and does not;
    - equal calls give equal rows.

    Args:
        evaluation: the component under test.
        task: built from its table; its answers are measured.
        prompts: of at least two cases.
    """
    check = Clauses(evaluation)
    refused = evaluation.refusal(task, prompts)
    named = not refused and evaluation.headline
    check(named, "it can measure the prompts, and names its headline", f"{refused!r}")
    one_by_one = dataclasses.replace(_ASKING, prompts_per_batch=1)
    sets = ((None, "own", _ASKING), ("", "blank", _ASKING), (None, "own", one_by_one))
    with check.raises_nothing("any text is measured", "gold and empty answers"):
        given = [
            Answers(prompts, evaluation.answer(Repeats(task, text), prompts, task, asking), condition)
            for text, condition, asking in sets
        ]
        together = evaluation.score(given[:2], task, "name")
        alone = [evaluation.score([item], task, "name")[0] for item in given]
    clause = "it answers each prompt, whatever the size of a batch"
    counts = [len(item.said) for item in given]
    check(counts == [len(prompts)] * 3, clause, f"got {counts} for {len(prompts)}")
    gold, empty, small = map(_json, alone)
    check(gold == small, clause, f"{gold}, one by one {small}")
    both, apart = [_json(item) for item in together], [gold, empty]
    clause = "sets of answers are measured in order, together as alone"
    check(both == apart, clause, f"{both}, alone {apart}")
    again = _json(evaluation.score(given[:1], task, "name")[0])
    check(again == gold, "equal calls give equal rows", f"{gold}, then {again}")
    for scored, answers in zip(alone, given, strict=True):
        patients = tuple(map(cluster_of, answers.prompts))
        got = f"got {scored.clusters}"
        check(tuple(scored.clusters) == patients, "each question has its patient", got)
        for metric in (evaluation.headline, *evaluation.beside):
            _values_are_sound(check, scored.values(metric), len(patients))
            unit = scored.unit(metric)
            check(unit in _UNITS, "a metric that audits compare has a unit", f"{metric}: {unit!r}")
        rows_are_sound(check, scored.rows(), len(patients))
        lines = scored.lines()
        _lines_are_sound(check, lines)
        asked = [(line["prompt_id"], line["condition"]) for line in lines]
        expected = [(prompt.id, answers.condition) for prompt in answers.prompts]
        check(asked == expected, "a line stands for each answer", f"{asked}, not {expected}")
    best, worst = (sum(item.values(evaluation.headline)) for item in alone[:2])
    got = f"{evaluation.headline}: {best} for gold, {worst} for empty"
    check(best > worst, "gold answers have more of the headline than empty ones", got)
    air = [prompt.with_blank_volumes() for prompt in prompts]
    beside = (
        evaluation.score_beside_blind([], some, lambda: prompts, task, "name") for some in (prompts, air)
    )
    rules = [rule for _, rule in beside if rule is not None]
    check(len(rules) == 2, "a rule that does not look stands beside it", "references gives none")
    blind, unseen = rules
    _values_are_sound(check, blind.values, len(prompts))
    rows_are_sound(check, blind.rows, len(prompts))
    same = blind.values == unseen.values
    check(same, "blind rules do not look", f"{blind.values}, {unseen.values} over air")


def check_condition(condition: Condition, prompts: Sequence[Prompt], dataset: Dataset | None = None) -> None:
    """Assert the contract of an audit's condition.

    - it names itself and its role;
    - each question has its showing, or none;
    - what is shown changes, or how it is asked, and neither case nor id;
    - some question is shown otherwise;
    - equal seeds give equal showings.

    Args:
        condition: the component under test.
        prompts: of several patients.
        dataset: of the prompts.
    """
    check = Clauses(condition)
    is_named = condition.says and condition.role in get_args(Role) and condition.repeats >= 1
    check(is_named, "it names itself and its role", f"{condition.says!r}, {condition.role!r}")
    with check.raises_nothing("it shows questions", f"{len(prompts)} prompts"):
        shown, again = (condition.show(prompts, seed=1, dataset=dataset) for _ in range(2))
    got = f"{len(shown)} for {len(prompts)}"
    check(len(shown) == len(prompts), "each question has its showing, or none", got)
    for before, after in zip(prompts, shown, strict=True):
        if after is not None:
            shown_else = before.showing(after.crops())
            asked_else = dataclasses.replace(before, parts=after.parts, reference=after.reference)
            is_same = after == shown_else or (shown_else == before and after == asked_else)
            check(is_same, "what is shown changes, or how it is asked", f"not so for {before.id!r}")
    moved = [item for item, own in zip(shown, prompts, strict=True) if item is not None and item != own]
    check(moved, "some question is shown otherwise", f"none of {len(prompts)}")
    check(list(shown) == list(again), "equal seeds give equal showings", "they differ")


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
    check = Clauses(audit)
    text, _ = task.gold(prompts[0])
    policy = Repeats(task, text)
    with check.raises_nothing("any policy is audited", f"{len(prompts)} prompts"):
        result, again = (
            audit(AnonymizedPolicy(item), prompts, task, evaluation, lambda: prompts, _ASKING, "name")
            for item in (policy, Repeats(task, text))
        )
    words = {(prompt.task, prompt.written()) for prompt in prompts}
    own, seen = ({id(prompt.parts) for prompt in some} for some in (prompts, policy.shown))
    clause = "it asks over the case's own volumes, and over something else"
    check(own <= seen and len(seen) > len(prompts), clause, f"{len(seen)} for {len(prompts)} prompts")
    for prompt in policy.shown:
        is_same = (prompt.task, prompt.written()) in words
        check(is_same, "only what is shown differs between conditions", f"asks {prompt.written()!r}")
    rows_are_sound(check, result.rows(), len(prompts))
    lines = result.lines()
    _lines_are_sound(check, lines)
    ids = {prompt.id for prompt in prompts}
    asked = {line["prompt_id"] for line in lines if line["condition"] == "own"}
    strange = {line["prompt_id"] for line in lines} - ids
    got = f"they lack {sorted(ids - asked)}; {sorted(strange)}"
    check(asked == ids and not strange, "lines over own volumes hold every question", got)
    check(result.verdict().strip(), "its verdict says something", f"{result.verdict()!r}")
    references = result.reference_lines()
    is_known = all(value is None or math.isfinite(value) for value in references.values())
    check(is_known, "the reference lines are numbers", f"got {references}")
    first, second = _json(result), _json(again)
    check(first == second, "equal calls give equal rows", f"{first}, then {second}")


def _json(result: EvalResult | AuditResult) -> list[Mapping[str, Any]]:
    return [row.to_json() for row in result.rows()]


def _values_are_sound(check: Clauses, values: Sequence[float], count: int) -> None:
    is_sound = len(values) == count and all(0.0 <= value <= 1.0 for value in values)
    check(is_sound, "each question has a value in 0..1", f"got {values} for {count}")


def rows_are_sound(check: Clauses, rows: Sequence[Row], most: int | None) -> None:
    """Fail unless tables and pages can show the rows."""
    check(rows, "rows are sound: there is one", "got none")
    names = [(row.name, row.metric) for row in rows]
    check(len({*names}) == len(names), "rows are sound: each has its name", f"got {names}")
    for row in rows:
        numbers = [end for end in (row.low, row.value, row.high) if end is not None]
        is_sound = all(map(math.isfinite, numbers)) and numbers == sorted(numbers) and row.unit in _UNITS
        is_sound = is_sound and (most is None or 0 <= row.questions <= most)
        is_told = row.value is not None or row.note
        check(is_sound and is_told, "rows are sound: numbers, units, counts", f"got {row}")
    with check.raises_nothing("rows are sound: they are JSON", f"{names}"):
        json.dumps([row.to_json() for row in rows], allow_nan=False)


def _lines_are_sound(check: Clauses, lines: Sequence[dict[str, Any]]) -> None:
    for line in lines:
        missing = [key for key in _LINE if key not in line]
        check(not missing, "a line says what was asked and answered", f"it lacks {missing}")
    with check.raises_nothing("lines are JSON", f"{len(lines)} lines"):
        json.dumps(lines, allow_nan=False)
