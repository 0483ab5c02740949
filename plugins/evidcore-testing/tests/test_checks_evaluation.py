import dataclasses
import itertools

import pytest
from evidcore_testing import check_audit, check_condition, check_evaluation
from mutants import altered, caught, changing

from evidcore.audit.policy import PolicyAudit, PolicyAuditResult
from evidcore.builtin.views import Volume
from evidcore.contracts import Answers, BlindRule, Evaluation
from evidcore.evaluate.numeric_result import NumericResult, numeric_result
from evidcore.registry.factory import build

TASK = build("task", {"use": "choice"}, given={}, where="test")
BLANK, OTHER = (
    build("condition", {"use": name}, given={}, where="test") for name in ("blank", "other-patient")
)
COUNT, ROWS = itertools.count(), itertools.count()  # a mutant that counts calls has one alone


class Length(Evaluation):
    """How much of a gold answer's length was written."""

    headline = "length"

    def answer(self, policy, prompts, task, asking):
        texts = policy.generate(prompts, max_new_tokens=asking.max_new_tokens)
        return [task.parse(prompt, text) for prompt, text in zip(prompts, texts, strict=True)]

    def score(self, answers, task, name):
        return [self.measure(given, task, name) for given in answers]

    def measure(self, given, task, name):
        pairs = zip(given.prompts, given.said, strict=True)
        figures = [self.figure(answer.text, task.gold(prompt)[0]) for prompt, answer in pairs]
        return numeric_result(name, given, [{"length": figure} for figure in figures], {"length": "rate"})

    def figure(self, text, gold):
        return min(1.0, len(text) / len(gold))

    def references(self, prompts, training, task, name):
        [half] = self.score([Answers(prompts, [TASK.parse(prompt, "No.") for prompt in prompts])], task, name)
        return BlindRule(values=half.values("length"), rule="says no", label="no", rows=tuple(half.rows()))


class Audit(PolicyAudit):
    def __init__(self):
        super().__init__(conditions=(BLANK, OTHER))


@pytest.fixture(scope="module")
def prompts(cases):
    return [prompt for case in cases for prompt in TASK.prompts(case, Volume(), 0)]


def test_sound_ones_pass(prompts):
    check_evaluation(Length(), TASK, prompts)
    check_audit(Audit(), Length(), TASK, prompts)
    for condition in (BLANK, OTHER):
        check_condition(condition, prompts)


def of_class(result, kind):
    return kind(**{field.name: getattr(result, field.name) for field in dataclasses.fields(result)})


def result_with(**members):
    """Return an evaluation whose result has other members."""
    kind = altered(NumericResult, **members)
    return changing(Length, "measure", lambda result: of_class(result, kind))


def each(method, change):
    """Return an evaluation whose result gives other rows or lines."""
    right = getattr(NumericResult, method)
    return result_with(**{method: lambda self: [change(item) for item in right(self)]})


def figuring(figure):
    return altered(Length, figure=lambda self, text, gold: figure(text))


def by_batch(self, policy, prompts, task, asking):
    answers = Length.answer(self, policy, prompts, task, asking)
    return answers if asking.prompts_per_batch > 1 else [dataclasses.replace(one, text="") for one in answers]


def loses_one(self, given, task, name):
    return Length.measure(self, Answers(given.prompts[1:], given.said, given.condition), task, name)


def counts_rows(self, given, task, name):
    return Length.measure(self, given, task, f"{name} {next(ROWS) // 5}")


def looks(self, prompts, *given):
    blind = Length.references(self, prompts, *given)
    return dataclasses.replace(blind, values=(0.0,) * 4) if prompts[0].crops()[0].blank else blind


EVALUATIONS = {
    "it can measure the prompts.*these are no counts":
        changing(Length, "refusal", lambda _: "these are no counts"),
    r"it answers each prompt.*got \[3, 3, 3\] for 4":
        altered(changing(Length, "answer", lambda answers: answers[1:]), measure=loses_one),
    "whatever the size of a batch.*one by one": altered(Length, answer=by_batch),
    "in order, together as alone.*alone": changing(Length, "score", lambda results: results[::-1]),
    "equal calls give equal rows.*then": altered(Length, measure=counts_rows),
    "more of the headline than empty ones.*length: 0.0 for gold, 4.0 for empty":
        figuring(lambda text: float(not text)),
    r"each question has a value in 0\.\.1. got": figuring(lambda text: float(len(text))),
    "a rule that does not look stands beside it": altered(Length, references=Evaluation.references),
    "blind rules do not look.*0.0, 0.0.* over air": altered(Length, references=looks),
    "each question has its patient.*'p', 'p'": result_with(clusters=("p",) * 4),
    "has a unit.*length: 'per mille'": result_with(unit=lambda self, metric: "per mille"),
    "rows are sound: there is one. got none": result_with(rows=lambda self: []),
    "rows are sound: each has its name.*'length'":
        result_with(rows=lambda self: NumericResult.rows(self) * 2),
    "rows are sound: numbers, units, counts.*value=0.5, low=0.9":
        each("rows", lambda row: dataclasses.replace(row, low=0.9, value=0.5)),
    "rows are sound: they are JSON.*TypeError":
        each("rows", lambda row: dataclasses.replace(row, extra={"model": object})),
    "a line stands for each answer.*not": result_with(lines=lambda self: NumericResult.lines(self)[1:]),
    r"a line says.*lacks \['case_id'": each("lines", lambda line: {"prompt_id": line["prompt_id"]}),
    "lines are JSON.*TypeError": each("lines", lambda line: {**line, "seen": {1}}),
}  # fmt: skip


@pytest.mark.parametrize("message", EVALUATIONS)
def test_an_evaluation_that_breaks_a_clause_is_caught(message, prompts):
    with caught(message):
        check_evaluation(EVALUATIONS[message](), TASK, prompts)


def audited(**members):
    """Return an audit whose result has other members."""
    kind = altered(PolicyAuditResult, **members)
    return changing(Audit, "__call__", lambda result: of_class(result, kind))


def asking(condition, change):
    """Return an audit that asks other prompts under a condition, under each where it is ""."""

    def ask(self, prompts, *given):
        return [
            (name, at, [change(prompts[index]) for index in at] if condition in ("", name) else some)
            for name, at, some in Audit.showings(self, prompts, *given)
        ]

    return altered(Audit, showings=ask)


def moves_on(self, *given):
    return Audit.__call__(self, *given[:-1], f"{given[-1]} {next(COUNT)}")


OVER = "over the case's own volumes, and over something else"
AUDITS = {
    f"{OVER}. 4 for 4": asking("", lambda prompt: prompt),
    f"{OVER}.*": asking("own", lambda prompt: prompt.with_blank_volumes()),
    "only what is shown differs between conditions.*asks": asking(
        "blank", lambda prompt: dataclasses.replace(prompt, task="other")
    ),
    "equal calls give equal rows.*then": altered(Audit, __call__=moves_on),
    "rows are sound: there is one": audited(rows=lambda self: []),
    r"hold every question.*they lack \['case-0": audited(
        lines=lambda self: PolicyAuditResult.lines(self)[1:]
    ),
    "its verdict says something. ' '": audited(verdict=lambda self: " "),
    "the reference lines are numbers.*nan": audited(reference_lines=lambda self: {"chance": float("nan")}),
}


@pytest.mark.parametrize("message", AUDITS)
def test_an_audit_that_breaks_a_clause_is_caught(message, prompts):
    with caught(message):
        check_audit(AUDITS[message](), Length(), TASK, prompts)


def condition(show):
    return altered(type(BLANK), show=lambda self, prompts, *, seed, dataset: show(prompts))


CONDITIONS = {
    "it names itself and its role. ''": altered(type(BLANK), says=""),
    "each question has its showing, or none. 3 for 4": condition(lambda prompts: prompts[1:]),
    "what is shown changes, or how it is asked.*'case-0": condition(
        lambda prompts: [one.sealed(0) for one in prompts]
    ),
    "some question is shown otherwise. none of 4": condition(list),
    "equal seeds give equal showings": condition(
        lambda prompts: [one.with_blank_volumes() if next(COUNT) % 3 else None for one in prompts]
    ),
    "it shows questions. 4 prompts raised ZeroDivisionError": condition(lambda prompts: 1 / 0),
}


@pytest.mark.parametrize("message", CONDITIONS)
def test_a_condition_that_breaks_a_clause_is_caught(message, prompts):
    with caught(message):
        check_condition(CONDITIONS[message](), prompts)
