"""recipes/medvr.toml teaches from answers alone: with masks and findings or without, the same bits.

The recipe as it stands, with fewer cases and steps, and with one change between the two: `annotated`.
"""

import json
from pathlib import Path

import pytest
from evidcore_testing.fixtures import evid as evid
from safetensors.torch import load_file

RECIPE = Path(__file__).parents[2] / "recipes" / "medvr.toml"
FEW = (
    "dataset.slices.train_cases=24", "dataset.slices.test_cases=12", "dataset.pictures.train_cases=24",
    "dataset.pictures.validation_cases=8", "dataset.pictures.test_cases=8", "dataset.atlas.train_cases=24",
    "dataset.atlas.validation_cases=8", "dataset.atlas.test_cases=8", "stage.fit.options.steps=4",
    "stage.sft[0].steps=40", "stage.sft[0].rows_per_step=8", "stage.sft[1].steps=12", "stage.grpo.steps=3",
    "stage.grpo.prompts_per_step=4", 'stage.audit.conditions=[{use="blank"}]',
)  # fmt: skip


@pytest.mark.slow
def test_the_recipe_comes_out_bit_for_bit_the_same_with_masks_and_findings_and_without(evid, tmp_path):
    told, bare = (
        Path(json.loads(evid("run", RECIPE, "--out", tmp_path / answer, "--json", *changes).stdout)["run"])
        for answer in ("true", "false")
        for changes in [[w for item in (*FEW, f"dataset.slices.annotated={answer}") for w in ("--set", item)]]
    )
    for name in ("answers/04-evaluate.jsonl", "rollouts/05-grpo.jsonl", "answers/06-evaluate.jsonl"):
        assert (told / name).read_bytes() == (bare / name).read_bytes(), name
    cold, *trained = (
        load_file(folder / "checkpoints" / stage / "model.safetensors")
        for folder, stage in ((told, "03-sft"), (told, "05-grpo"), (bare, "05-grpo"))
    )
    assert all((trained[0][name] == trained[1][name]).all() for name in cold)
    assert any((trained[0][name] != cold[name]).any() for name in cold)  # it has learnt
    groups = [json.loads(line) for line in (told / "rollouts" / "05-grpo.jsonl").read_text().splitlines()]
    assert any(len({item["total"] for item in group["rollouts"]}) > 1 for group in groups)
