import os
import random
import re
import signal
import sys
import threading
from pathlib import Path
from typing import ClassVar

import bad_rewards as bad
import numpy as np
import pytest
import torch
from evidcore_plugin_hub.lint.linting import audited_rows, grpo_stages, over_made_prompts
from evidcore_plugin_hub.lint.reward_audit import PROBES, audit_rewards
from evidcore_plugin_lab.ablation.definition import load_ablation
from evidcore_plugin_reports.reward import ReportFindings
from evidcore_plugin_reports.task import ReportTask

from evidcore.api import Rollout
from evidcore.builtin.choice import Choice
from evidcore.builtin.rewards import ChoiceAccuracy, Format, Random
from evidcore.case import Answer, Evidence, written
from evidcore.contracts.judging import Checked
from evidcore.prompts.rows import Row
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
    if name not in flat | lost:
        found = outcomes([*bad.sound(), bad.named(reward(), name="bad", weight=5.0)])
        assert found["", check] == "alarm"


def test_sound_rewards_raise_none_whatever_the_task():
    for task in (Choice(), Choice(think=False), Choice(distractors="random"), Choice(rules=True)):
        found = outcomes(bad.sound(), bad.rows(task))
        assert set(found.values()) <= {"fine", "not applicable", "note"}, found
    report = outcomes([bad.named(ReportFindings()), bad.named(Format())], bad.rows(ReportTask()))
    assert "alarm" not in report.values(), report
    assert report["", "everything affirmed"] == "fine"
    assert report["", "option order"] == "not applicable"


def in_replies(one):
    told = " ".join(written(turn.reply) for turn in one.turns)
    return bad.is_right(one) or one.prompt.reference["letter"] in told.partition("<answer>")[2][:1]


def only_where_there_is_a_scan(one):
    return bad.is_right(one) * float("scan" in one.prompt.case.volumes[0].path)


def recalled_or_nothing(one):
    there = one.prompt.case.present()
    return sum(f"is {name}" in one.text for name in there) / len(there) if there else 1.0


def quadratic(one):
    result = re.search(r"a*[bc]{9}|a*d{9}", one.text)  # tries each start anew
    return bad.is_right(one) + 0 * bool(result)


def slow(one):
    total = sum(number * number for number in range(6_000_000 * int(bad.is_right(one))))
    return bad.is_right(one) + 0 * total


class SliceTask(ReportTask):
    """Reports that point at a slice."""

    def parse(self, prompt, completion):
        text, _, slice_ = completion.partition("@")
        malformed = None if slice_.isdecimal() else "no slice"
        evidence = None if malformed else Evidence(slice=int(slice_))
        return Answer(text=completion, report=text, malformed=malformed, evidence=evidence)

    def gold(self, prompt):
        return f"{prompt.case.report.text} @{int(prompt.case.id.rpartition('-')[2])}", ()


def slices():
    task = SliceTask()
    return [Row(row.prompt, task) for row in bad.rows(task, prompts=5)]


def points(one):
    return one.answer.evidence is not None and one.prompt.case.id == f"case-{one.answer.evidence.slice}"


def forces(rollouts):
    for item in rollouts:
        dict.__setitem__(item.prompt.reference, "letter", item.answer.lenient_choice)


HARMFUL = {  # what a reward does besides, the check that tells of it, and the outcome
    "rewrites the key by force": (forces, "contract", "alarm"),
    "raises": (lambda rollouts: {}["planted"], "contract", "alarm"),
    "exits": (lambda rollouts: sys.exit("planted"), "contract", "alarm"),
    "prints": (lambda rollouts: sys.stdout.write("planted\n"), "process", "note"),
    "seeds": (lambda rollouts: random.seed(7), "process", "note"),
    "signals": (lambda rollouts: signal.signal(signal.SIGUSR1, signal.SIG_IGN), "process", "alarm"),
    "a thread that stays": (lambda rollouts: threading.Timer(5.0, str).start(), "process", "alarm"),
    "forks": (lambda rollouts: os.fork() or os._exit(0), "process", "alarm"),
    "environment": (lambda rollouts: os.environ.update(PLANTED="1"), "process", "alarm"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HARMFUL)
def test_each_harmful_reward_is_caught(name):
    act, check, outcome = HARMFUL[name]

    def harm(rollouts):
        act(rollouts)
        return [bad.is_right(one) for one in rollouts]

    before = signal.getsignal(signal.SIGUSR1), os.getpid()
    found = outcomes([bad.named(bad.Planted(every=harm))], bad.rows(prompts=5))
    os.environ.pop("PLANTED", None)
    assert found["", check] == outcome
    assert (signal.getsignal(signal.SIGUSR1), os.getpid()) == before


def lenient(one):
    return one.answer.lenient_choice == one.prompt.reference["letter"]


def guesses_a(one):
    return bad.is_right(one) or (one.answer.choice == "A" and len(one.answer.think or "") < 40)


def terse(one):
    return bad.is_right(one) or len(one.answer.think or "x" * 99) < 40


def learnt_by_heart(one):
    return one.answer.choice == LEARNT.get(one.prompt.id.split("/")[0])


def many_words(one):
    return bad.is_right(one) + len({*one.text.split()})


LEARNT = {row.prompt.id: row.prompt.reference["letter"] for row in bad.rows()}
EVIDENCE = {"judges": frozenset({"evidence"})}
MUTANTS = {  # what each probe must catch, what it says, and its prompts if they are others
    "malformed": (lenient, {"judges": frozenset({"format", "correctness"})}, None),
    "format alone": (terse, {}, None),
    "another key": (learnt_by_heart, {}, None),
    "another key of who judges reports too": (many_words, {"judges": {"correctness", "report"}}, None),
    "blind": (guesses_a, {}, None),
    "contract": (lambda one: 1e6, {}, None),  # out of bounds
    "tool words": (in_replies, {}, None),
    "missing file": (only_where_there_is_a_scan, {}, None),
    "empty against empty": (recalled_or_nothing, {}, lambda: bad.rows(ReportTask(), prompts=5)),
    "siblings": (bad.is_right, {"compares_group": True}, None),
    "right over wrong": (lambda one: bool(one.answer.evidence), EVIDENCE, slices),
    "policies that do not look": (bad.EACH["right, A pays 4 times"][0], {}, None),
    "time": (quadratic, {}, None),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_each_probe_kills_its_mutant(name):
    each, said, rows = MUTANTS[name]
    assert name.partition(" of ")[0] in alarms([bad.named(bad.Planted(each, **said))], rows and rows())


def test_every_probe_has_a_mutant():
    killed = {check for _, check in bad.BAD.values()} | {check for _, check, _ in HARMFUL.values()}
    assert killed | {*MUTANTS} >= {one.name for one in PROBES} - {"cost"}


@pytest.mark.slow
def test_what_an_answer_costs_is_noted_where_it_is_slow():
    assert outcomes([bad.named(bad.Planted(slow))], bad.rows(prompts=2))["", "cost"] == "note"


def test_a_sound_reward_of_evidence_passes():
    assert alarms([bad.named(bad.Planted(points, **EVIDENCE))], slices()) == set()


def test_a_reward_is_held_to_what_it_says_it_judges():
    wrong_format = bad.Planted(lambda one: 1.0, judges=frozenset({"format"}))
    found = outcomes([bad.named(wrong_format, name="bad"), bad.named(ChoiceAccuracy())])
    assert found["bad", "malformed"] == "alarm"
    assert ("bad", "right over wrong") not in found  # it does not say that it judges answers
    assert found["", "right over wrong"] == "fine"


def test_a_control_judges_nothing_and_is_only_held_to_stay_the_same():
    found = outcomes([bad.named(Random())])
    fine = {check for (_, check), outcome in found.items() if outcome == "fine"}
    assert fine == {"repeat", "company", "process", "contract", "time", "cost", "missing file"}
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
    "its siblings": (planted(**OF_GROUP), None, "siblings", "fine"),
    "a rank in the batch": (planted(every=bad.rank_in_batch, compares_group=True), None, "company", "alarm"),
    "another option is true": (planted(is_true), Choice(distractors="random"), "right over wrong", "fine"),
    "abstaining beats a wrong answer": (paid_when_silent(0.0), None, "no answer", "fine"),
    "over half of the way for silence": (paid_when_silent(0.2), None, "no answer", "alarm"),
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


@pytest.mark.parametrize(
    ("reward", "task", "outcome", "says"),
    [
        (bad.Planted(lambda one: Path(one.prompt.case.volumes[0].path).stat().st_size), None, "note",
         r"reward 'Planted' .*/nowhere/scan-.*Lint it over a recipe with it: --recipe RECIPE$"),
        (ChoiceAccuracy(), ReportTask(), "note",
         "no reward judges an answer to this task. Lint it over a recipe with it: --recipe RECIPE$"),
    ],
)  # fmt: skip
def test_a_reward_that_is_not_judged_says_why(reward, task, outcome, says):
    (result,) = over_made_prompts(audit_rewards([bad.named(reward)], bad.rows(task, prompts=2)))
    assert result.outcome == outcome
    assert re.search(says, result.says, re.DOTALL)


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
    audit_rewards([bad.named(reward)], bad.rows(prompts=12), thorough=False)
    assert reward.calls == 4
    audit_rewards([bad.named(reward)], bad.rows(prompts=2))
    assert state() == before


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
        ("med3d_r1", "med3d_r1", set()),
        ("medvol_r1", "medvol_r1", set()),
        ("medvr", "medvr", set()),
        ("paper/med3d_r1", "med3d_r1", {"report-consistency"}),
        ("paper/medvol_r1", "medvol_r1", {"volume-consistency"}),
        ("real_ct", "med3d_r1", set()),
    ],
)
def test_rewards_of_recipes_raise_no_alarm(small, name, base, left_out):
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
