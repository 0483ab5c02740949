"""The checks of evaluations and audits let right ones pass and name each clause that a wrong one breaks."""

import dataclasses
import itertools

import pytest
from evidcore_testing import check_audit, check_condition, check_evaluation, volume_case

from evidcore.audit.policy import PolicyAudit, PolicyAudited
from evidcore.builtin.views import Volume
from evidcore.contracts import Answers, Blind, Evaluation
from evidcore.evaluate.figured import Figured, figured
from evidcore.registry.factory import build

TASK = build("task", {"use": "report"}, given={}, where="test")


class Length(Evaluation):
    """How much of a gold report's length was written."""

    headline = "length"

    def answer(self, policy, prompts, task, asking):
        texts = policy.generate(prompts, max_new_tokens=asking.max_new_tokens)
        return [task.parse(prompt, text) for prompt, text in zip(prompts, texts, strict=True)]

    def score(self, answers, task, name):
        return [self.one(given, task, name) for given in answers]

    def one(self, given, task, name):
        pairs = zip(given.prompts, given.said, strict=True)
        figures = [{"length": min(1.0, len(said.text) / len(task.gold(one)[0]))} for one, said in pairs]
        return figured(name, given, figures, {"length": "rate"})

    def references(self, prompts, training, task, name):
        [half] = self.score([Answers(prompts, [TASK.parse(one, "No.") for one in prompts])], task, name)
        return Blind(values=half.values("length"), rule="says no", label="no", rows=tuple(half.rows()))


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


class Refuses(Length):
    def refusal(self, task, prompts):
        return "these are no counts"


class LosesOne(Length):
    def answer(self, policy, prompts, task, asking):
        return super().answer(policy, prompts, task, asking)[1:]

    def one(self, given, task, name):
        return super().one(Answers(given.prompts[1:], given.said, given.condition), task, name)


class ByBatch(Length):
    def answer(self, policy, prompts, task, asking):
        said = super().answer(policy, prompts, task, asking)
        return said if asking.prompts_per_batch > 1 else [dataclasses.replace(one, text="") for one in said]


class Turned(Length):
    def score(self, answers, task, name):
        return super().score(answers, task, name)[::-1]


class Moody(Length):
    moods = itertools.count()

    def one(self, given, task, name):
        return super().one(given, task, f"{name} {next(self.moods) // 5}")


class Silence(Length):
    def one(self, given, task, name):
        figures = [{"length": float(not said.text)} for said in given.said]
        return figured(name, given, figures, {"length": "rate"})


class Large(Length):
    def one(self, given, task, name):
        return figured(
            name, given, [{"length": float(len(one.text))} for one in given.said], {"length": "rate"}
        )


class Looks(Length):
    def references(self, prompts, training, task, name):
        found = super().references(prompts, training, task, name)
        is_air = prompts[0].crops()[0].blank
        return dataclasses.replace(found, values=(0.0,) * len(prompts)) if is_air else found


def scored_by(**changes):
    """Return an evaluation whose results have these members instead."""
    form = type("Changed", (Figured,), changes)

    class Changed(Length):
        def one(self, given, task, name):
            right = super().one(given, task, name)
            return form(**{item.name: getattr(right, item.name) for item in dataclasses.fields(right)})

    return Changed


def rows_with(**changes):
    return scored_by(rows=lambda self: [dataclasses.replace(row, **changes) for row in Figured.rows(self)])


def lines_with(change):
    return scored_by(lines=lambda self: [change(line) for line in Figured.lines(self)])


BROKEN = [
    (Refuses, "it can measure the prompts.*these are no counts"),
    (LosesOne, r"it answers each prompt.*got \[3, 3, 3\] for 4"),
    (ByBatch, "whatever the size of a batch"),
    (Turned, "measured in order, together as alone"),
    (Moody, "equal calls give equal rows"),
    (Silence, "gold answers have more of the headline than empty ones.*length: 0.0 for gold, 4.0 for empty"),
    (Large, "each question has a value in 0..1"),
    (Looks, "blind rules do not look"),
    (scored_by(clusters=("p",) * 4), "each question has its patient"),
    (scored_by(unit=lambda self, metric: "per mille"), "has a unit.*length: 'per mille'"),
    (scored_by(rows=lambda self: []), "rows are sound: there is one"),
    (scored_by(rows=lambda self: Figured.rows(self) * 2), "rows are sound: each has its name"),
    (rows_with(low=0.9, value=0.5), "rows are sound: numbers, units, counts.*value=0.5, low=0.9"),
    (rows_with(questions=5), "rows are sound.*questions=5"),
    (rows_with(value=None, low=None, high=None, note=""), "rows are sound.*value=None"),
    (rows_with(extra={"model": object}), "rows are sound: they are JSON"),
    (scored_by(lines=lambda self: Figured.lines(self)[1:]), "a line stands for each answer"),
    (lines_with(lambda line: {**line, "condition": "mine"}), "a line stands for each answer"),
    (lines_with(lambda line: {"prompt_id": line["prompt_id"]}), r"a line says.*lacks \['case_id'"),
    (lines_with(lambda line: {**line, "seen": {1}}), "lines are JSON"),
]


@pytest.mark.parametrize(("broken", "clause"), BROKEN)
def test_a_broken_evaluation_is_caught_by_its_clause(broken, clause, prompts):
    with pytest.raises(AssertionError, match=rf"(?s){clause}"):
        check_evaluation(broken(), TASK, prompts)


CONDITIONS = tuple(
    build("condition", {"use": name}, given={}, where="test") for name in ("blank", "other-patient")
)


class Audit(PolicyAudit):
    def __init__(self):
        super().__init__(conditions=CONDITIONS)


class OwnAlone(Audit):
    def shown(self, prompts, asking):
        return {name: [[*enumerate(prompts)]] for name in super().shown(prompts, asking)}


class NeverOwn(Audit):
    def shown(self, prompts, asking):
        return {**super().shown(prompts, asking), "own": [[*enumerate(one.blanked() for one in prompts)]]}


class OtherWords(Audit):
    def shown(self, prompts, asking):
        others = [[*enumerate(dataclasses.replace(one, task="other") for one in prompts)]]
        return {**super().shown(prompts, asking), "blank": others}


class MovesOn(Audit):
    seeds = itertools.count()

    def __call__(self, policy, prompts, task, evaluation, training, asking, name):
        name = f"{name} {next(self.seeds)}"
        return super().__call__(policy, prompts, task, evaluation, training, asking, name)


def audited_by(**changes):
    """Return an audit whose findings have these members instead."""
    form = type("Changed", (PolicyAudited,), changes)

    class Changed(Audit):
        def __call__(self, *given):
            right = super().__call__(*given)
            return form(**{item.name: getattr(right, item.name) for item in dataclasses.fields(right)})

    return Changed


@pytest.mark.parametrize(
    ("broken", "clause"),
    [
        (OwnAlone, "over the case's own volumes, and over something else"),
        (NeverOwn, "over the case's own volumes, and over something else"),
        (OtherWords, "only what is shown differs between conditions"),
        (MovesOn, "equal calls give equal rows"),
        (audited_by(rows=lambda self: []), "rows are sound: there is one"),
        (audited_by(lines=lambda self: PolicyAudited.lines(self)[1:]), "hold every question.*they lack"),
        (audited_by(verdict=lambda self: " "), "its verdict says something"),
        (
            audited_by(reference_lines=lambda self: {"chance": float("nan")}),
            "the reference lines are numbers",
        ),
    ],
)
def test_a_broken_audit_is_caught_by_its_clause(broken, clause, prompts):
    with pytest.raises(AssertionError, match=rf"(?s){clause}"):
        check_audit(broken(), Length(), TASK, prompts)


def shows(show=None, **changes):
    """Return a condition over air with these members instead."""
    blank = type(CONDITIONS[0])
    if show is not None:
        changes["show"] = lambda self, prompts, *, seed, dataset: show(prompts)
    return type("Changed", (blank,), changes)()


COUNT = itertools.count()


@pytest.mark.parametrize(
    ("broken", "clause"),
    [
        (shows(says=""), "it names itself and its role"),
        (shows(role="rung"), "it names itself and its role"),
        (shows(lambda prompts: prompts[1:]), "each question has its showing, or none"),
        (shows(lambda prompts: [one.sealed(0) for one in prompts]), "only what is shown changes"),
        (shows(lambda prompts: [None] * len(prompts)), "some question is shown otherwise"),
        (shows(list), "some question is shown otherwise"),
        (
            shows(lambda prompts: [one.blanked() if next(COUNT) % 3 else None for one in prompts]),
            "equal seeds give equal showings",
        ),
        (shows(lambda prompts: 1 / 0), "it shows questions"),
    ],
)
def test_a_broken_condition_is_caught_by_its_clause(broken, clause, prompts):
    with pytest.raises(AssertionError, match=rf"(?s){clause}"):
        check_condition(broken, prompts)
