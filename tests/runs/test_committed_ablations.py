"""The ablations in recipes/ablations load, share their fits, and measure on enough patients."""

import os
import subprocess
from pathlib import Path

import pytest
from evidcore_plugin_lab.ablation.definition import load_ablation

from evidcore.recipe import load
from evidcore.runs.assembly import Assembly
from evidcore.runs.dry_run import dry_run
from evidcore.runs.inputs import hashed_inputs, inputs_hash

pytestmark = pytest.mark.slow  # they load every recipe
ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "recipes" / "ablations").glob("*.toml"))
LOCK = {"dataset": {"chest": {"fingerprint": "f"}}}


@pytest.fixture(scope="module")
def ablations():
    return [load_ablation(file) for file in FILES]


def test_they_are_those_of_the_papers_tables(ablations):
    assert [item.name for item in ablations] == [file.stem for file in FILES]
    assert {item.name for item in ablations} == {
        "ram_arw", "gain", "bridge_lora", "consistency", "discretisation",
        # other forms of what gained nothing, and what must win where the mechanism works at all
        "ram_attempts", "arw_control", "arw_rare", "consistency_control",
        "medvol_rewards", "medvol_cold_start", "emrl", "emrl_prior", "emrl_weak", "emrl_hearsay", "medvr",
        "medvr_gamma", "medvr_agree", "medvr_near", "medvr_rare", "views",
    }  # fmt: skip
    arms = {item.name: [arm.name for arm in item.arms] for item in ablations}
    assert len(arms["ram_arw"]) == 4
    assert arms["gain"] == ["gain-1.00", "gain-1.10", "gain-1.22"]
    assert arms["discretisation"] == ["none", "paper", "released"]


def test_each_has_three_seeds_and_a_hundred_test_patients(ablations):
    for item in ablations:
        assert len(item.seeds) >= 3
        recipe = item.cell_recipe(item.reference, item.seeds[0])
        shown = {metric.stage for metric in item.metrics}
        for index, stage in enumerate(recipe.stages):
            if stage.kind == "evaluate" and recipe.stage_name(index) in shown:
                assert all(use.limit == 0 or use.limit >= 100 for use in stage.data)


def test_all_arms_of_all_tables_share_both_fits(ablations):
    keys = [set(), set()]
    for item in ablations:
        if item.name in {"arw_control", "arw_rare"} or item.name.startswith((
            "medvol",
            "emrl",
            "medvr",
            "views",
        )):
            # other patients, or another showing of the same
            continue
        for arm in item.arms:
            recipe = item.cell_recipe(arm.name, 17)
            assembly = Assembly(recipe)
            for index, own in enumerate(keys):
                own.add(inputs_hash(hashed_inputs(assembly, recipe.stages[index], LOCK, {})))
    assert [len(own) for own in keys] == [1, 1]


def grpo(recipe):
    return next(stage for stage in recipe.stages if stage.kind == "grpo")


def test_each_reward_of_medvol_is_left_out_by_the_arm_of_its_name(ablations):
    item = next(item for item in ablations if item.name == "medvol_rewards")
    whole = grpo(item.cell_recipe("all", 17)).reward
    for index, reward in enumerate(whole):
        name = reward["name"] or reward["use"]
        left = grpo(item.cell_recipe(f"no-{name}", 17)).reward
        assert [each["weight"] for each in left] == [
            0.0 if at == index else each["weight"] for at, each in enumerate(whole)
        ]


def test_an_arm_changes_what_it_is_called_after(ablations):
    by_name = {item.name: item for item in ablations}

    def recipe(name, arm):
        return by_name[name].cell_recipe(arm, 17)

    assert recipe("gain", "gain-1.22").stages[2].reweighter["gain"] == 1.22
    assert recipe("bridge_lora", "bridge-lora").stages[2].train == ("bridge", "language")
    assert recipe("consistency", "off").stages[4].reward[2]["weight"] == 0.0
    assert recipe("consistency", "every-answer").stages[4].reward[2]["gate"] == ""
    assert recipe("discretisation", "paper").stages[4].reward[2]["levels"] == "paper"
    window = grpo(recipe("medvol_rewards", "delta-2")).reward[2]
    assert (window["use"], window["delta"]) == ("volume-consistency", 2)
    four = grpo(recipe("medvol_rewards", "paper")).reward
    assert [(item["use"], item["weight"]) for item in four] == [
        ("evidence-format", 0.25), ("key-slice", 0.25), ("box-overlap", 0.25), ("volume-consistency", 0.25),
    ]  # fmt: skip
    rewards = {
        arm: [item["use"] for item in grpo(recipe("emrl", arm)).reward]
        for arm in ("text", "slice", "finding", "key-slice")
    }
    report = ["format", "report-findings", "consistent-evidence"]
    assert rewards == {
        "text": report,
        "slice": [*report, "cross-view"],
        "finding": ["format", "cross-view", "consistent-evidence"],  # in place of the text's reward
        "key-slice": [*report, "key-slice"],
    }
    bound = {
        arm: next(item["bind"] for item in grpo(recipe("emrl", arm)).reward if item["use"] == "cross-view")
        for arm in ("slice", "finding")
    }
    assert bound == {"slice": "slice", "finding": "finding"}
    looks = {arm: grpo(recipe("medvr", arm)) for arm in ("text", "zoom", "evr", "cca", "all")}
    assert {arm: (item.rollout["use"], len(item.tools), len(item.reward)) for arm, item in looks.items()} == {
        "text": ("tool-call", 1, 2),
        "zoom": ("tool-call", 1, 2),
        "evr": ("entropy-regrounding", 1, 2),
        "cca": ("tool-call", 1, 3),
        "all": ("entropy-regrounding", 1, 3),
    }
    assert (looks["text"].rollout["calls"], looks["zoom"].rollout["calls"]) == (0, 1)
    forks = {arm: grpo(recipe("medvr_gamma", arm)).rollout for arm in ("gamma-0", "gamma-0.5", "gamma-2")}
    assert [item.get("gamma", 0.5) for item in forks.values()] == [0.0, 0.5, 2.0]
    true = recipe("medvr_gamma", "true-boxes")
    assert (true.tasks["look"]["boxes"], true.datasets["slices"]["annotated"]) == ("findings", True)
    for arm in ("montage", "drr", "video"):  # what the encoder learns from is what the model is shown
        shown = recipe("views", arm)
        training_set = shown.stages[0].options["view"]
        assert {key: training_set[key] for key in shown.model.view} == dict(shown.model.view)
        assert (shown.model.view["use"], shown.stages[0].options["supervision"]) == (arm, ["labels"])
    cold = recipe("medvol_cold_start", "steps-2800").stages[1]
    assert (cold.kind, cold.steps) == ("sft", 2800)
    assert recipe("medvol_cold_start", "steps-1400").stages[1].steps == 1400
    assert recipe("medvol_cold_start", "half-the-patients").stages[1].data[0].patients == 0.5
    crossed = recipe("ram_arw", "projection+uniform")
    assert (crossed.model.bridge["use"], crossed.stages[2].reweighter["use"]) == ("projection", "uniform")


def by_turns(arms):
    """Return all arms; where time is short (CI), one of them, another with each commit."""
    if not os.environ.get("CI"):
        return arms
    count = subprocess.check_output(["git", "rev-list", "--count", "HEAD"], cwd=ROOT)
    return [arms[int(count) % len(arms)]]


@pytest.mark.parametrize("place", range(len(FILES)), ids=[file.stem for file in FILES])
def test_every_arm_passes_the_check_on_few_cases(ablations, place):
    item = ablations[place]
    lines = (ROOT / ".ci" / "short-demo").read_text().splitlines()
    cases = [line for line in lines if "_cases=" in line]
    for arm in by_turns(item.arms):
        datasets = item.cell_recipe(arm.name, 17).datasets  # an ablation may bring sets of its own
        drawn = [f"{name}.source" if "source" in table else name for name, table in datasets.items()]
        few = [line.replace("dataset.chest", f"dataset.{name}") for name in drawn for line in cases]
        recipe = load(item.recipe, [*item.cell_overrides(arm.name, 17), *few])
        seen = dry_run(recipe)
        assert {row.stage for row in seen.data} == {recipe.stage_name(at) for at in range(len(recipe.stages))}
        assert seen.unchecked == ()
