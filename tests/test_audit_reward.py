import json
import tomllib
from pathlib import Path

import pytest

from evidcore.api import Reward, Score
from evidcore.contracts.judging import Checked
from evidcore.prompts.rows import PromptSource, prompt_sets
from evidcore.recipe import load
from evidcore.runs.assembly import Assembly
from evidcore.runs.context import Context

TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

RECIPE = Path(__file__).parents[1] / "recipes" / "med3d_r1.toml"
SMALL = ("dataset.chest.train_cases=12", "arms=false")
CONSTANT = 'stage.grpo.reward=[{use="constant"}]'


class Constant(Reward):
    """The same for everyone, and a count of the calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, rollouts, earlier):
        self.calls += 1
        return [Score(value=0.3)] * len(rollouts)


class ChecksItself(Constant):
    """Constant, with a check of its own."""

    judges = frozenset()

    def checks(self, gold):
        return [Checked(check="own", outcome="fine", says=f"looked at {len(gold)}", figures={"seen": 1.0})]


@pytest.fixture
def constant(offered):
    offered("evid-constant", "[evidcore.reward]\nconstant = evid_constant:It\n", It=Constant)


def words(*overrides):
    return [word for override in (*SMALL, *overrides) for word in ("--set", override)]


def test_the_demos_rewards_pass_and_single_notes_can_fail(evid):
    result = evid("audit", "reward", RECIPE, *words())
    assert "reward rewards of med3d_r1.toml, 05-grpo: note" in result.output
    assert result.output.splitlines()[-1] == "1 audited: 0 with alarms, 1 with notes"
    evid("audit", "reward", RECIPE, *words(), "--fail-under", "note", exit_code=1)


def test_an_alarm_is_exit_status_1_and_stands_in_the_json(evid, constant):
    result = evid("audit", "reward", RECIPE, *words(CONSTANT), "--json", exit_code=1)
    checks = json.loads(result.stdout)["results"][0]["checks"]
    (over,) = [item for item in checks if item["check"] == "right over wrong"]
    assert (over["outcome"], over["task"], over["reward"]) == ("alarm", "choice", "")
    assert over["figures"] == {"right": 0.3, "wrong": 0.3, "share_of_prompts": 0.0}


def test_what_a_reward_checks_of_itself_is_printed_also_where_it_is_fine(evid, offered):
    offered("evid-checks", "[evidcore.reward]\nchecks-itself = evid_checks:It\n", It=ChecksItself)
    own = words('stage.grpo.reward=[{use="checks-itself", name="mine"}]')
    result = evid("audit", "reward", RECIPE, *own, "--limit", 3)
    (line,) = [line for line in result.output.splitlines() if line.startswith("mine: choice, own")]
    assert line.split() == ["mine:", "choice,", "own", "fine", "looked", "at", "3"]


def test_a_recipe_without_a_grpo_stage_is_named(evid):
    fit = 'stage=[{kind="fit", component="model.encoder", data=[{dataset="chest"}]}]'
    result = evid("audit", "reward", RECIPE, *words(fit), exit_code=2)
    assert "has no grpo stage, so there is no reward to judge" in result.stderr


def test_a_function_of_trl_is_audited_in_place_of_the_stages_rewards(evid, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def long(completions, **columns):\n    return [len(text) / 9 for text in completions]\n")
    result = evid("audit", "reward", RECIPE, *words(), "--trl", f"{file}:long", "--json", exit_code=1)
    checks = json.loads(result.stdout)["results"][0]["checks"]
    assert "length" in {item["check"] for item in checks if item["outcome"] == "alarm"}
    evid("audit", "reward", RECIPE, *words(), "--trl", "gone.py:long", exit_code=2)


def test_the_first_step_of_a_run_tells_whether_its_start_policy_can_be_taught(evid, tmp_path):
    file = tmp_path / "05-grpo.jsonl"
    lines = [
        {"step": step, "rollouts": [{"total": total} for total in totals]}
        for step, totals in ((1, (0.3, 0.3)), (1, (0.3, 0.3)), (2, (0.0, 1.0)))
    ]
    file.write_text("\n".join(map(json.dumps, lines)))
    result = evid("audit", "reward", RECIPE, *words(), "--rollouts", file, "--json", exit_code=1)
    (start,) = [
        item for item in json.loads(result.stdout)["results"][0]["checks"] if item["check"] == "start"
    ]
    assert (start["outcome"], start["figures"]) == ("alarm", {"dead_groups": 1.0, "saturated": 0.0})


def test_a_file_that_holds_no_rollouts_is_named(evid, tmp_path):
    file = tmp_path / "other.jsonl"
    for text in ("", "no json", '{"step": 1}', '{"step": 1, "rollouts": []}'):
        file.write_text(text)
        words_ = ("--set", "dataset.chest.train_cases=6", "--limit", 2, "--rollouts", file)
        assert "holds no rollouts" in evid("audit", "reward", RECIPE, *words_, exit_code=2).stderr


def stage_and_source(*overrides):
    recipe = load(RECIPE, (*SMALL, *overrides))
    context = Context(Assembly(recipe), recipe.stage_name(4))
    return recipe.stages[4], context, PromptSource(prompt_sets(context, recipe.stages[4].data), seed=17)


def test_a_stage_warns_before_it_starts_and_leaves_its_own_rewards_unasked(constant, caplog):
    stage, context, source = stage_and_source(CONSTANT)
    stage.audit(context, source)
    says = "05-grpo: the rewards, right over wrong: right earns 0.3, wrong 0.3:"
    assert any(record.getMessage().startswith(says) for record in caplog.records)
    assert stage.rewards(context)[0].reward.calls == 0


def test_a_stage_whose_rewards_are_sound_says_nothing(caplog):
    stage, context, source = stage_and_source()
    result = {item.check: item.outcome for item in stage.audit(context, source) if not item.reward}
    assert caplog.records == []
    assert result["right over wrong"] == "fine"
    assert result["blind"] == "not applicable"  # it takes more prompts than a start has time for


def test_a_stage_trains_where_nothing_judges_its_rewards_and_says_so(unwatched, caplog):
    stage, context, source = stage_and_source()
    assert stage.audit(context, source) == []
    (said,) = [record.getMessage() for record in caplog.records]
    assert said == (
        "05-grpo: its rewards are not audited. `pip install evidcore-plugin-hub` brings what does that"
    )


def test_a_reward_that_cannot_be_audited_stops_no_training(offered, caplog):
    class Broken(Constant):
        def __call__(self, rollouts, earlier):
            raise KeyError("volume")

    offered("evid-broken", "[evidcore.reward]\nbroken = evid_broken:It\n", It=Broken)
    stage, context, source = stage_and_source('stage.grpo.reward=[{use="broken"}]')
    assert [(one.check, one.outcome) for one in stage.audit(context, source)] == [("contract", "alarm")]
    assert "05-grpo: the rewards, contract: evid-broken 1.0: reward 'broken'" in caplog.text


@pytest.mark.parametrize(("rewards", "is_warned"), TABLE["denials"])
def test_check_warns_where_all_that_judges_texts_takes_a_denial_for_the_finding(
    offered, constant, caplog, rewards, is_warned
):
    class Deaf(Constant):
        judges = frozenset({"report"})
        detects_negation = False

    offered("evid-deaf", "[evidcore.reward]\ndeaf = evid_deaf:It\n", It=Deaf)
    stage, context, _ = stage_and_source(f"stage.grpo.reward=[{rewards}]")
    stage.check(context)
    said = [
        "05-grpo: reward 'deaf' hardly tells a finding from its denial, and nothing else judges what is said"
    ]
    assert [record.getMessage() for record in caplog.records] == said * is_warned
