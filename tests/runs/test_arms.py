"""Arms: stages that leave the recipe's line, and what training changed from one evaluation to the next."""

import json
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from evidcore_plugin_lab.ablation.cells import planned_inputs
from evidcore_testing.recipes import stage_text

from evidcore.recipe import load, to_toml
from evidcore.runs.assembly import Assembly
from evidcore.runs.execute import outputs_of
from evidcore.runs.folder import RunFolder, read_lines
from evidcore.runs.inputs import inputs_hash, lock_table

CHEST = {"dataset": "chest", "task": "choice"}
EVALUATE = {"kind": "evaluate", "data": [{**CHEST, "split": "test", "limit": 6}], "max_new_tokens": 24}
LONGER = {
    "kind": "sft", "arm": "longer", "train": ["bridge", "language"], "data": [CHEST], "steps": 2,
    "rows_per_step": 4, "learning_rate": 2e-3,
}  # fmt: skip
ARM = "".join(stage_text(**stage) for stage in (EVALUATE, LONGER, {**EVALUATE, "arm": "longer"}))


def with_arm(text):
    """Return a recipe with an arm between SFT and GRPO."""
    above, grpo, below = text.partition('[[stage]]\nkind = "grpo"')
    return above + ARM + grpo + below


@pytest.fixture(scope="module")
def armed(evid):
    evid.recipe.write_text(with_arm(evid.recipe.read_text()), encoding="utf-8")
    return evid.run()


def inputs(folder, name):
    key = RunFolder(folder).result(name)["inputs"]
    return key, json.loads((RunFolder(folder).store / key / "inputs.json").read_text())


def test_arms_may_be_left_out(tmp_path, recipe_text):
    path = tmp_path / "tiny.toml"
    path.write_text(with_arm(recipe_text), encoding="utf-8")
    whole = load(path)
    recipe = load(path, ["arms=false", "stage.grpo.steps=9"])
    assert [recipe.stage_name(place) for place in range(len(recipe.stages))] == [
        "01-fit-encoder", "02-fit-language", "03-sft", "04-evaluate", "05-grpo", "06-evaluate",
    ]  # fmt: skip
    assert [recipe.stages[place] for place in (3, 5)] == [whole.stages[place] for place in (3, 7)]
    resolved = to_toml(recipe)
    assert "steps = 9  # command line" in resolved
    (tmp_path / "resolved.toml").write_text(resolved, encoding="utf-8")
    assert load(tmp_path / "resolved.toml") == recipe


@pytest.mark.slow
def test_an_arm_starts_where_it_leaves_and_leads_to_nothing(armed):
    names = sorted(path.stem for path in (armed / "results").glob("*.json"))
    assert names == [
        "01-fit-encoder", "02-fit-language", "03-sft", "04-evaluate", "05-sft-longer", "06-evaluate-longer",
        "07-grpo", "08-evaluate", "changes",
    ]  # fmt: skip
    sft, longer, grpo = (inputs(armed, name)[0] for name in ("03-sft", "05-sft-longer", "07-grpo"))
    starts = {name: inputs(armed, name)[1]["upstream"]["model"] for name in names[3:8]}
    assert starts == {
        "04-evaluate": sft, "05-sft-longer": sft, "06-evaluate-longer": longer, "07-grpo": sft,
        "08-evaluate": grpo,
    }  # fmt: skip
    recipe = load(armed / "resolved.toml")
    assert (
        outputs_of(RunFolder(armed), recipe, recipe.line).model
        == (armed / "checkpoints" / "07-grpo").resolve()
    )


@pytest.mark.slow
def test_the_plan_of_a_run_names_the_stages_that_it_has(armed):
    assembly = Assembly(load(armed / "resolved.toml"))
    for name, own in planned_inputs(assembly, lock_table(assembly.recipe, assembly.datasets)).items():
        assert inputs_hash(own) == inputs(armed, name)[0], name


@pytest.mark.slow
def test_each_evaluation_of_the_line_is_set_against_every_earlier_one(armed):
    def value(name):
        lines = read_lines(armed / "answers" / f"{name}.jsonl")
        return {line["prompt_id"]: line["value"] for line in lines}

    rows = RunFolder(armed).result("changes")["rows"]
    assert [row["note"].partition(";")[0] for row in rows] == [
        "08-evaluate minus 04-evaluate", "08-evaluate minus 06-evaluate-longer",
    ]  # fmt: skip
    for row, before in zip(rows, ("04-evaluate", "06-evaluate-longer"), strict=True):
        assert (row["name"], row["metric"]) == ("choice", "strict_accuracy_change")
        old, new = value(before), value("08-evaluate")
        assert row["value"] == pytest.approx(statistics.mean(new[key] - old[key] for key in new))


@pytest.mark.slow
def test_fits_are_shipped_and_other_stages_where_they_are_named(armed, tmp_path):
    script = Path(__file__).parents[2] / "benchmarks" / "ship_stages.py"

    def shipped(place, *also):
        command = [sys.executable, script, armed, place, *also]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return sorted(line.partition(":")[0] for line in done.stdout.splitlines()), done.stderr

    fits, trained = ["01-fit-encoder", "02-fit-language"], ["03-sft", "05-sft-longer"]
    assert shipped(tmp_path / "fits") == (fits, "")
    assert shipped(tmp_path / "kept", "--also", *trained) == ([*fits, *trained], "")
    assert "no stage 03-stf. It has: 01-fit-encoder" in shipped(tmp_path / "none", "--also", "03-stf")[1]
