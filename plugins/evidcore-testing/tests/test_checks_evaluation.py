"""The checks of evaluations and audits let right ones pass and name each clause that a wrong one breaks."""

import dataclasses
import itertools

import pytest
from evidcore_testing import check_audit, check_condition, check_evaluation, volume_case

from evidcore.audit.policy import PolicyAudit, PolicyAuditResult
from evidcore.builtin.views import Volume
from evidcore.contracts import Answers, BlindRule, Evaluation
from evidcore.evaluate.numeric_result import NumericResult, numeric_result
from evidcore.registry.factory import build

TASK = build("task", {"use": "choice"}, given={}, where="test")
CONDITIONS = tuple(
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
        return [self.one(given, task, name) for given in answers]

    def one(self, given, task, name):
        pairs = zip(given.prompts, given.said, strict=True)
        figures = [self.figure(said.text, task.gold(prompt)[0]) for prompt, said in pairs]
        return numeric_result(name, given, [{"length": one} for one in figures], {"length": "rate"})

    def figure(self, text, gold):
        return min(1.0, len(text) / len(gold))

    def references(self, prompts, training, task, name):
        [half] = self.score([Answers(prompts, [TASK.parse(one, "No.") for one in prompts])], task, name)
        return BlindRule(values=half.values("length"), rule="says no", label="no", rows=tuple(half.rows()))


class Audit(PolicyAudit):
    def __init__(self):
        super().__init__(conditions=CONDITIONS)


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cases")
    cases = [volume_case(folder, seed) for seed in range(4)]
    return [prompt for case in cases for prompt in TASK.prompts(case, Volume(), 0)]


def test_right_ones_pass(prompts):
    check_evaluation(Length(), TASK, prompts)
    check_audit(Audit(), Length(), TASK, prompts)
    for condition in CONDITIONS:
        check_condition(condition, prompts)


def mutant(**members):
    return type("Mutant", (Length,), members)


def altered(form, found, **members):
    """Return a result that has these members instead."""
    fields = {item.name: getattr(found, item.name) for item in dataclasses.fields(found)}
    return type("Altered", (form,), members)(**fields)


def scored_by(**members):
    return mutant(one=lambda self, *given: altered(NumericResult, Length.one(self, *given), **members))


def rows_with(**changes):
    return scored_by(
        rows=lambda self: [dataclasses.replace(row, **changes) for row in NumericResult.rows(self)]
    )


def lines_with(change):
    return scored_by(lines=lambda self: [change(line) for line in NumericResult.lines(self)])


def by_batch(self, policy, prompts, task, asking):
    said = Length.answer(self, policy, prompts, task, asking)
    return said if asking.prompts_per_batch > 1 else [dataclasses.replace(one, text="") for one in said]


def loses_one(self, given, task, name):
    return Length.one(self, Answers(given.prompts[1:], given.said, given.condition), task, name)


def looks(self, prompts, *given):
    found = Length.references(self, prompts, *given)
    return dataclasses.replace(found, values=(0.0,) * len(prompts)) if prompts[0].crops()[0].blank else found


EVALUATIONS = {
    "it can measure the prompts.*these are no counts": mutant(
        refusal=lambda self, task, prompts: "these are no counts"
    ),
    r"it answers each prompt.*got \[3, 3, 3\] for 4": mutant(
        answer=lambda self, *given: Length.answer(self, *given)[1:], one=loses_one
    ),
    "whatever the size of a batch": mutant(answer=by_batch),
    "measured in order, together as alone": mutant(
        score=lambda self, *given: Length.score(self, *given)[::-1]
    ),
    "equal calls give equal rows": mutant(
        one=lambda self, given, task, name: Length.one(self, given, task, f"{name} {next(ROWS) // 5}")
    ),
    "gold answers have more of the headline than empty ones.*length: 0.0 for gold, 4.0 for empty": mutant(
        figure=lambda self, text, gold: float(not text)
    ),
    "each question has a value in 0..1": mutant(figure=lambda self, text, gold: float(len(text))),
    "blind rules do not look": mutant(references=looks),
    "each question has its patient": scored_by(clusters=("p",) * 4),
    "has a unit.*length: 'per mille'": scored_by(unit=lambda self, metric: "per mille"),
    "rows are sound: there is one": scored_by(rows=lambda self: []),
    "rows are sound: each has its name": scored_by(rows=lambda self: NumericResult.rows(self) * 2),
    "rows are sound: numbers, units, counts.*value=0.5, low=0.9": rows_with(low=0.9, value=0.5),
    "rows are sound: they are JSON": rows_with(extra={"model": object}),
    "a line stands for each answer": scored_by(lines=lambda self: NumericResult.lines(self)[1:]),
    r"a line says.*lacks \['case_id'": lines_with(lambda line: {"prompt_id": line["prompt_id"]}),
    "lines are JSON": lines_with(lambda line: {**line, "seen": {1}}),
}


@pytest.mark.parametrize("clause", EVALUATIONS)
def test_a_broken_evaluation_is_caught_by_its_clause(clause, prompts):
    with pytest.raises(AssertionError, match=rf"(?s){clause}"):
        check_evaluation(EVALUATIONS[clause](), TASK, prompts)


def audited_by(**members):
    return type(
        "Mutant",
        (Audit,),
        {
            "__call__": lambda self, *given: altered(
                PolicyAuditResult, Audit.__call__(self, *given), **members
            )
        },
    )


def asking(change):
    """Return an audit that asks other prompts under some conditions."""
    return type("Mutant", (Audit,), {"shown": lambda self, *given: change(Audit.shown(self, *given), *given)})


def moves_on(self, *given):
    return Audit.__call__(self, *given[:-1], f"{given[-1]} {next(COUNT)}")


OVER = "over the case's own volumes, and over something else"
AUDITS = {
    f"{OVER}. 4 for 4": asking(lambda shown, prompts, _: {name: [[*enumerate(prompts)]] for name in shown}),
    f"{OVER}.*": asking(
        lambda shown, prompts, _: {
            **shown,
            "own": [[*enumerate(one.with_blank_volumes() for one in prompts)]],
        }
    ),
    "only what is shown differs between conditions": asking(
        lambda shown, prompts, _: {
            **shown,
            "blank": [[*enumerate(dataclasses.replace(one, task="other") for one in prompts)]],
        }
    ),
    "equal calls give equal rows": type("Mutant", (Audit,), {"__call__": moves_on}),
    "rows are sound: there is one": audited_by(rows=lambda self: []),
    "hold every question.*they lack": audited_by(lines=lambda self: PolicyAuditResult.lines(self)[1:]),
    "its verdict says something": audited_by(verdict=lambda self: " "),
    "the reference lines are numbers": audited_by(reference_lines=lambda self: {"chance": float("nan")}),
}


@pytest.mark.parametrize("clause", AUDITS)
def test_a_broken_audit_is_caught_by_its_clause(clause, prompts):
    with pytest.raises(AssertionError, match=rf"(?s){clause}"):
        check_audit(AUDITS[clause](), Length(), TASK, prompts)


def condition(show=None, **members):
    """Return a condition over air with these members instead."""
    if show is not None:
        members["show"] = lambda self, prompts, *, seed, dataset: show(prompts)
    return type("Mutant", (type(CONDITIONS[0]),), members)()


BROKEN = {
    "it names itself and its role. ''": condition(says=""),
    "each question has its showing, or none": condition(lambda prompts: prompts[1:]),
    "only what is shown changes": condition(lambda prompts: [one.sealed(0) for one in prompts]),
    "some question is shown otherwise": condition(list),
    "equal seeds give equal showings": condition(
        lambda prompts: [one.with_blank_volumes() if next(COUNT) % 3 else None for one in prompts]
    ),
    "it shows questions": condition(lambda prompts: 1 / 0),
}


@pytest.mark.parametrize("clause", BROKEN)
def test_a_broken_condition_is_caught_by_its_clause(clause, prompts):
    with pytest.raises(AssertionError, match=rf"(?s){clause}"):
        check_condition(BROKEN[clause], prompts)
