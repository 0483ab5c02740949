import random
from pathlib import Path
from typing import ClassVar

import bad_rewards as bad
import numpy as np
import pytest
import torch
from evidcore_plugin_hub.lint.linting import audited_rows, grpo_stages
from evidcore_plugin_hub.lint.reward_audit import RULES, audit_rewards
from evidcore_plugin_lab.ablation.definition import load_ablation
from evidcore_plugin_reports.reward import ReportFindings
from evidcore_plugin_reports.task import ReportTask

from evidcore.api import Rollout
from evidcore.builtin.choice import Choice
from evidcore.builtin.rewards import ChoiceAccuracy, Format, Random
from evidcore.contracts.judging import Checked
from evidcore.recipe import load
from evidcore.text.tags import LETTERS

RECIPES = Path(__file__).parents[4] / "recipes"
in_repository = pytest.mark.skipif(not RECIPES.is_dir(), reason="needs the recipes of the repository")


def outcomes(rewards, rows=None, **keys):
    found = audit_rewards(rewards, rows or bad.rows(), **keys)
    return {(one.reward, one.check): one.outcome for one in found}


def alarms(rewards, rows=None, **keys):
    found = outcomes(rewards, rows, **keys)
    return {check for (reward, check), outcome in found.items() if outcome == "alarm" and not reward}


@pytest.mark.slow
@pytest.mark.parametrize("name", bad.BAD)
def test_each_bad_reward_raises_the_alarm_of_its_fault_whether_it_says_what_it_judges_or_not(name):
    reward, check = bad.BAD[name]
    assert check in alarms([bad.named(reward())])
    planted = reward()
    planted.judges = frozenset({"correctness"})
    assert check in alarms([bad.named(planted)])


@pytest.mark.slow
@pytest.mark.parametrize("name", bad.BAD)
def test_a_sound_reward_beside_it_hides_no_fault_that_still_pays(name):
    reward, check = bad.BAD[name]
    flat = {"constant", "letter A", "format alone", "letter against option words", "saturating"}
    lost = {"anti-correlated", "echoes the prompt", "parrots the report", "names all options"}
    noted = {"any of several answers", "silence", "an empty answer", "an option that is not there"}
    if name not in flat | lost:
        found = outcomes([*bad.sound(), bad.named(reward(), name="bad", weight=5.0)])
        assert found["", check] == ("note" if name in noted else "alarm")


def test_sound_rewards_raise_none_whatever_the_task():
    for task in (Choice(), Choice(think=False), Choice(distractors="random"), Choice(rules=True)):
        found = outcomes(bad.sound(), bad.rows(task))
        assert set(found.values()) <= {"fine", "not applicable", "note"}, found
    report = outcomes([bad.named(ReportFindings()), bad.named(Format())], bad.rows(ReportTask()))
    assert "alarm" not in report.values(), report
    assert report["", "everything affirmed"] == "fine"
    assert report["", "option order"] == "not applicable"


def test_every_check_kills_a_mutant():
    def lenient(one):
        return one.answer.lenient_choice == one.prompt.reference["letter"]

    learnt = {row.prompt.id: row.prompt.reference["letter"] for row in bad.rows()}

    def guesses_a(one):
        return bad.is_right(one) or (one.answer.choice == "A" and len(one.answer.think or "") < 40)

    mutants = {
        "malformed": bad.Planted(lenient, judges=frozenset({"format", "correctness"})),
        "format alone": bad.Planted(lambda one: bad.is_right(one) or len(one.answer.think or "x" * 99) < 40),
        "another key": bad.Planted(lambda one: one.answer.choice == learnt.get(one.prompt.id.split("/")[0])),
        "blind": bad.Planted(guesses_a),
    }
    killed = {check for check, reward in mutants.items() if check in alarms([bad.named(reward)])}
    assert killed == set(mutants)
    assert killed | {check for _, check in bad.BAD.values()} == set(RULES)


def test_a_reward_is_held_to_what_it_says_it_judges():
    wrong_format = bad.Planted(lambda one: 1.0, judges=frozenset({"format"}))
    found = outcomes([bad.named(wrong_format, name="bad"), bad.named(ChoiceAccuracy())])
    assert found["bad", "malformed"] == "alarm"
    assert ("bad", "right over wrong") not in found  # it does not say that it judges answers
    assert found["", "right over wrong"] == "fine"


def test_a_control_judges_nothing_and_is_only_held_to_stay_the_same():
    found = outcomes([bad.named(Random())])
    fine = {check for (_, check), outcome in found.items() if outcome == "fine"}
    assert fine == {"repeat", "company"}
    assert "alarm" not in found.values()


def longer(one):
    return len(one.text) / 1000


def is_true(one):
    return one.answer.choice in [LETTERS[index] for index in one.prompt.reference["true_options"]]


def planted(each=None, **said):
    return lambda: [bad.named(bad.Planted(each, **said))]


def paid_when_silent(value):
    return planted(lambda one: value if not one.text else 2 * bad.is_right(one) - 1)


def one_of_two_declares():
    declares = bad.Planted(bad.is_right, declared={"length": "as in X"})
    return [bad.named(declares, name="a"), bad.named(bad.Planted(longer), name="b")]


OF_GROUP = {"every": bad.rank_in_group, "compares_group": True}
OUTCOMES = {  # rewards, their task, and the outcome of a check
    "recall alone on reports": (planted(bad.recalled), ReportTask(), "everything affirmed", "alarm"),
    "what one declares excuses no other": (one_of_two_declares, None, "length", "alarm"),
    "a rank in the group that is not said": (planted(every=bad.rank_in_group), None, "company", "alarm"),
    "a rank in the group": (planted(**OF_GROUP), None, "company", "fine"),
    "its order of options": (planted(**OF_GROUP), None, "option order", "fine"),
    "a rank in the batch": (planted(every=bad.rank_in_batch, compares_group=True), None, "company", "alarm"),
    "another option is true": (planted(is_true), Choice(distractors="random"), "right over wrong", "fine"),
    "abstaining beats a wrong answer": (paid_when_silent(0.0), None, "no answer", "fine"),
    "over half of the way for silence": (paid_when_silent(0.2), None, "no answer", "note"),
}  # fmt: skip


@pytest.mark.parametrize("name", OUTCOMES)
def test_the_outcome_of_a_check(name):
    rewards, task, check, outcome = OUTCOMES[name]
    assert outcomes(rewards(), bad.rows(task))["", check] == outcome


def test_a_declared_fault_is_a_note_and_says_why():
    pays = bad.Planted(lambda one: bad.is_right(one) + longer(one), declared={"length": "as in X"})
    (found,) = [one for one in audit_rewards([bad.named(pays)], bad.rows()) if one.check == "length"]
    assert found.outcome == "note"
    assert found.says.endswith("Declared: Planted: as in X")


def test_a_reward_that_costs_is_left_out_with_those_it_gates():
    dear = bad.Planted(bad.is_right, audit_exemption="a model reads every text")
    gated = bad.named(bad.Planted(bad.is_right), name="gated", gate="dear")
    found = audit_rewards([*bad.sound(), bad.named(dear, name="dear"), gated], bad.rows())
    left_out = {one.reward: one.says for one in found if one.check == "asked"}
    assert left_out["dear"] == "is not asked: a model reads every text"
    assert "gated by 'dear'" in left_out["gated"]
    assert dear.calls == gated.reward.calls == 0
    assert [one.check for one in audit_rewards([bad.named(dear)], bad.rows())] == ["asked"]


def test_no_generator_is_moved_and_many_prompts_are_a_few_calls():
    def draws(one):
        return bad.is_right(one) + 0 * (random.random() + np.random.random() + float(torch.rand(1)))

    def state():
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()

    before, reward = state(), bad.Planted(draws)
    audit_rewards([bad.named(reward)], bad.rows(prompts=12))
    assert state() == before
    assert reward.calls == 4


def test_a_gate_is_composed_as_in_training():
    parrot = bad.BAD["parrots the report"][0]
    gated = bad.named(parrot(), name="parrot", gate="ChoiceAccuracy")
    assert "copied report" not in alarms([*bad.sound(), gated])
    assert "copied report" in alarms([*bad.sound(), bad.named(parrot(), name="parrot", weight=3.0)])


def test_a_task_without_gold_answers_is_not_applicable():
    class Mute(Choice):
        def gold(self, prompt):
            raise ValueError("nobody knows")

    source = [type(row)(row.prompt, Mute()) for row in bad.rows()]
    found = audit_rewards(bad.sound(), source)
    assert {one.outcome for one in found} == {"not applicable"}
    assert "nobody knows" in found[0].says


SMALL = {
    "med3d_r1": ("dataset.chest.train_cases=30",),
    "medvol_r1": ("dataset.abdomen.train_cases=8",),
    "medvr": ("dataset.slices.train_cases=30",),
}


@pytest.fixture(scope="module")
def small():
    """Return prompts of a base recipe, in small."""
    result = {}
    for name, overrides in SMALL.items():
        stage, context = grpo_stages(load(RECIPES / f"{name}.toml", overrides))[0]
        result[name] = audited_rows(stage, context, 5)
    return result


def audited(recipe, rows):
    """Audit the rewards of a recipe's first grpo stage over prompts of another."""
    stage, context = grpo_stages(recipe)[0]
    return audit_rewards(stage.rewards(context), rows)


@in_repository
@pytest.mark.parametrize(
    ("name", "base", "left_out"),
    [
        ("paper/med3d_r1", "med3d_r1", {"report-consistency"}),
        ("paper/medvol_r1", "medvol_r1", {"volume-consistency"}),
        ("real_ct", "med3d_r1", set()),
    ],
)
def test_rewards_of_recipes_whose_data_are_elsewhere_raise_no_alarm(small, name, base, left_out):
    found = audited(load(RECIPES / f"{name}.toml"), small[base])
    assert [one for one in found if one.outcome == "alarm"] == []
    assert {one.reward for one in found if one.check == "asked"} == left_out


@in_repository
@pytest.mark.slow
def test_rewards_of_the_committed_ablations_raise_no_alarm(small):
    seen = set()
    for file in sorted((RECIPES / "ablations").glob("*.toml")):
        ablation = load_ablation(file)
        for arm in ablation.arms:
            recipe = ablation.cell_recipe(arm.name, 17)
            stage = next((stage for stage in recipe.stages if stage.kind == "grpo"), None)
            if stage is None or str(stage.reward) in seen or recipe.name == "emrl":
                continue  # of E-MRL a reader judges that a stage fits: benchmarks/settling.py
            seen.add(str(stage.reward))
            found = audited(recipe, small[recipe.name if recipe.name in SMALL else "med3d_r1"])
            assert [one for one in found if one.outcome == "alarm"] == [], (file.name, arm.name)
    assert len(seen) > 8


def test_what_a_reward_checks_of_itself_stands_among_the_outcomes():
    class Checks(bad.Planted):
        gold: ClassVar[list[Rollout]] = []

        def checks(self, gold):
            self.gold.extend(gold)
            return [Checked(check="own", outcome="alarm", says="pays for 3", figures={"share": 0.3})]

    rows = bad.rows()
    found = audit_rewards([bad.named(Checks(bad.is_right), name="mine"), *bad.sound()], rows)
    (own,) = [one for one in found if one.check == "own"]
    assert (own.reward, own.task, own.outcome) == ("mine", "choice", "alarm")
    assert own.figures == {"share": 0.3}
    assert [one.prompt.id for one in Checks.gold] == [row.prompt.id for row in rows]
    assert all(bad.is_right(one) for one in Checks.gold)
