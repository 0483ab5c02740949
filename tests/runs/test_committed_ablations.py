"""The ablations in recipes/ablations share their fits and measure on enough patients.

Which they are, their arms, and what each arm resolves to is held in tests/golden/ablations.txt.
"""

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
ELSEWHERE = ("medvol", "emrl", "medvr", "views", "smollm2", "published")  # other patients, words or showings
LOCK = {"dataset": {"chest": {"fingerprint": "f"}}}


@pytest.fixture(scope="module")
def ablations():
    return [load_ablation(file) for file in FILES]


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
        if item.name in {"arw_control", "arw_rare"} or item.name.startswith(ELSEWHERE):
            continue
        for arm in item.arms:
            recipe = item.cell_recipe(arm.name, 17)
            assembly = Assembly(recipe)
            for index, own in enumerate(keys):
                own.add(inputs_hash(hashed_inputs(assembly, recipe.stages[index], LOCK, {})))
    assert [len(own) for own in keys] == [1, 1]


def rewards(recipe):
    """Return the weight of each reward of a recipe's GRPO, those of 0 left out."""
    (table,) = (stage.reward for stage in recipe.stages if stage.kind == "grpo")
    return {item["use"]: item["weight"] for item in table if item["weight"]}


def grpo(recipe):
    return next(stage for stage in recipe.stages if stage.kind == "grpo")


def test_each_reward_of_medvol_is_left_out_by_the_arm_of_its_name(ablations):
    (item,) = (item for item in ablations if item.name == "medvol_rewards")
    whole = item.cell_recipe("all", 17)
    for reward in grpo(whole).reward:
        left = rewards(item.cell_recipe(f"no-{reward['name'] or reward['use']}", 17))
        assert left == {use: weight for use, weight in rewards(whole).items() if use != reward["use"]}


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
        recipe = load(item.recipe_path, [*item.cell_overrides(arm.name, 17), *few])
        folder = recipe.folder / recipe.model.language.get("folder", "")
        if not folder.is_dir():
            pytest.skip(f"{folder.name} is not here: `make {item.name}` gets it")
        seen = dry_run(recipe)
        assert {row.stage for row in seen.data} == {recipe.stage_name(at) for at in range(len(recipe.stages))}
        assert seen.unchecked == ()
