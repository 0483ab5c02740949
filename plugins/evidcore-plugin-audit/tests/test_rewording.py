"""The same choices with options in another order, and with a wrong hint."""

import dataclasses
import re

import pytest
from evidcore_plugin_audit.rewording import Hinted, Permuted
from evidcore_testing import check_condition

from evidcore.api import Case, EvalOptions, Finding, Policy
from evidcore.builtin.choice import Choice
from evidcore.builtin.views import Volume
from evidcore.registry import factory

NAMES = [f"finding {number}" for number in range(8)]
TASK = Choice(think=True)
CASES = [
    Case(
        id=f"c{place}", patient=f"p{place}", volumes=(),
        findings=tuple(
            Finding(name=name, state="present" if number in (place % 8, (place + 3) % 8) else "absent")
            for number, name in enumerate(NAMES)
        ),
    )
    for place in range(12)
]  # fmt: skip
PROMPTS = [prompt for case in CASES for prompt in TASK.prompts(case, Volume(), 0)]


class Answering(Policy):
    """Answers by a function of the question's words."""

    def __init__(self, letter):
        self.letter = letter

    def generate(self, prompts, *, max_new_tokens, temperature=0.0):
        said = [self.letter(prompt.words()) for prompt in prompts]
        return [f"<think>seen</think><answer>{letter}</answer>" for letter in said]

    def log_likelihoods(self, prompts, completions):
        return [[0.0] * len(some) for some in completions]


def rungs(letter, *conditions):
    audit = factory.build("audit", {"use": "policy", "conditions": [*conditions]}, given={}, where="test")
    evaluation = factory.build("evaluation", {"use": "choice"}, given={}, where="test")
    asking = EvalOptions(max_new_tokens=8)
    result = audit(Answering(letter), PROMPTS, TASK, evaluation, lambda: PROMPTS, asking, "choice")
    return {rung.name: rung.above.value for rung in result.rungs}, result


@pytest.mark.parametrize("condition", [Permuted(), Hinted(max_questions=5)])
def test_it_keeps_the_contract(condition):
    check_condition(condition, PROMPTS, None)


def test_the_right_option_is_the_same_under_another_letter():
    for before, after in zip(PROMPTS, Permuted().show(PROMPTS, seed=3, dataset=None), strict=True):
        old, new = before.reference, after.reference
        assert old["letter"] != new["letter"]
        assert sorted(old["options"]) == sorted(new["options"])
        for prompt, letter in ((before, old["letter"]), (after, new["letter"])):
            assert f"\n{letter}) {old['finding']}\n" in prompt.words()
        assert [old["options"][place] for place in old["true_options"]] == [
            new["options"][place] for place in new["true_options"]
        ]
        gold = TASK.parse(after, TASK.gold(after)[0])
        assert (gold.malformed, gold.choice) == (None, new["letter"])


def test_who_knows_letters_by_heart_loses_and_who_knows_options_does_not():
    key = {prompt.words(): prompt.reference for prompt in PROMPTS}
    learnt = {frozenset(re.findall(r"\) (.*)", words)): item for words, item in key.items()}

    def letters(words):  # whatever now stands under it
        return learnt[frozenset(re.findall(r"\) (.*)", words))]["letter"]

    def options(words):
        finding = learnt[frozenset(re.findall(r"\) (.*)", words))]["finding"]
        return re.search(rf"(.)\) {finding}\n", words)[1]

    table = {"use": "permuted"}
    lost, result = rungs(letters, {"use": "blank"}, table)
    assert lost["permuted"] > 0.9
    assert result.results["own"][0].values("strict_accuracy") == (1.0,) * len(PROMPTS)
    kept, _ = rungs(options, {"use": "blank"}, table)
    assert kept["permuted"] == 0.0


def test_who_follows_a_wrong_hint_loses_all():
    def follows(words):
        return (re.search(r"A colleague answered (.)\)", words) or re.search(r"(.)\) ", words))[1]

    lost, result = rungs(follows, {"use": "blank"}, {"use": "hinted"})
    assert lost["hinted"] > 0
    assert result.score("hinted").value == 0.0
    hinted = Hinted(max_questions=4).show(PROMPTS, seed=0, dataset=None)
    assert sum(item is not None for item in hinted) == 4


def test_what_is_no_choice_in_lines_is_left_out():
    bare = PROMPTS[0]
    for options in (["not", "in lines"], ["mass", "Both A and C"]):
        reference = {**bare.reference, "options": options, "letter": "A"}
        other = dataclasses.replace(bare, reference=reference)
        assert Permuted().show([other], seed=0, dataset=None) == [None]
    true = [*range(len(bare.reference["options"]))]
    for reference in ({}, {**bare.reference, "true_options": true}):
        other = dataclasses.replace(bare, reference=reference)
        assert Hinted().show([other], seed=0, dataset=None) == [None]
