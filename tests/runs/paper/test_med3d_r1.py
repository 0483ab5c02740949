"""The paper's recipe: what `check` and `plan` say of it without data and weights; and run in small."""

import json
from pathlib import Path

import pytest
import torch
from evidcore_plugin_ct_data.miniatures import write
from evidcore_plugin_encoders.vit3d import ViT3D
from evidcore_plugin_lab.plan.plan import plan
from evidcore_plugin_reports.testing import tiny_reward_model
from evidcore_testing.models import tiny_language
from safetensors.torch import load_file, save_file

from evidcore.recipe import load

RECIPE = Path(__file__).parents[3] / "recipes" / "paper" / "med3d_r1.toml"
ENCODER = (
    12 * (4 * 768**2 + 4 * 768 + 2 * 4 * 768**2 + 5 * 768 + 4 * 768)  # attention, MLP, two norms
    + (8 * 16 * 16 + 1) * 768 + 2744 * 768 + 2 * 768 + 768  # stem, positions, norm, class token
)  # fmt: skip
BRIDGE = (
    2 * 768 + (8 * 768 + 1) * 2048 + (2048 + 1) * 2048 + 2 * 2048  # norm, pooling, a linear layer, norm
    + (2 * 2048 + 1) * 2048 + (2048 + 1) * 2048 + 343 * 2048 + 2 * 2048  # gate, positions, norm
)  # fmt: skip
LANGUAGE = 3_085_938_688


@pytest.fixture(scope="module")
def planned(evid, alone):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EVID_CACHE_GB", "20")  # else it goes by the disk's free space, which changes meanwhile
        return json.loads(evid("plan", alone, "--json", "--out", alone.parent).stdout)


@pytest.mark.slow
def test_check_counts_patches_tokens_and_parameters(checked):
    assert checked["patch_grid_zyx"] == [14, 14, 14]
    assert checked["visual_tokens"] == 7 * 7 * 7 == 343
    assert checked["parameters"] == {"encoder": ENCODER, "bridge": BRIDGE, "language": LANGUAGE}


@pytest.mark.slow
def test_the_plan_says_how_many_volumes_are_encoded_once_before_the_data_are_here(planned):
    features = planned["features"]
    of_patch = features["volume_bytes"] / 14**3
    assert of_patch == 768 * 4 + 3 * 4  # width and centre
    assert features["volumes"] is None
    assert features["on_disk"] == int(20e9) // features["volume_bytes"]


def test_the_bridge_alone_is_trained_in_sft_and_the_whole_model_in_grpo(checked):
    sft, grpo = checked["stages"]
    assert (sft["trained"], sft["frozen"]) == (BRIDGE, ENCODER + LANGUAGE)
    assert (grpo["trained"], grpo["frozen"]) == (ENCODER + BRIDGE + LANGUAGE, 0)


def test_check_names_what_is_not_here_and_what_gets_it(checked, alone):
    ct_rate, _, rad, encoder, language, judge = checked["unchecked"]
    assert f"{alone.parent / 'CT-RATE'}: there is no such folder" in ct_rate
    assert "huggingface.co/datasets/ibrahimhamamci/CT-RATE" in ct_rate
    assert "zenodo.org/records/6406114" in rad
    assert f"{alone.parent / 'brgsa-encoder' / 'weights.safetensors'}: there is no such file" in encoder
    assert "`hf download Qwen/Qwen2.5-3B-Instruct --revision aa8e7253" in language
    assert "6.17 GB, Qwen Research License" in language
    assert judge.startswith("service.judge.model: weights of weqweasdas/RM-Mistral-7B (14.22 GB")
    assert checked["data"] == []


@pytest.mark.slow
def test_plan_adds_up_by_hand(planned):
    sft, grpo = planned["stages"][0], planned["stages"][3]
    whole = ENCODER + BRIDGE + LANGUAGE
    for stage, trained in ((sft, BRIDGE), (grpo, whole)):
        for memory in stage["memory"].values():
            assert memory["weights"] == 4 * whole
            assert memory["gradients"] == 4 * trained
            assert memory["optimizer"] == 8 * trained
    h, k, f = 2048, 256, 11008
    matrices = 36 * (2 * h * h + 2 * h * k + 3 * h * f)
    half = grpo["memory"]["bfloat16"]
    assert (half["reference"], half["casts"]) == (4 * whole, 2 * matrices)
    assert sft["memory"]["bfloat16"]["reference"] == 0
    positions = 599 + 4 * 512  # the prompt once: 343 visual tokens and 256 of text are assumed
    assert half["cache"] == 16 * positions * 36 * 2 * k * 2  # a step's 16 prompts are sampled together
    # one layer's, and 36 inputs: activations are computed again
    read, cells = 4 * (599 + 512) + 599, 4 * 512 * (599 + 512) + 599**2
    of_language = positions * (26 * h + 6 * h + 8 * f) + (read * 2 * h + cells) * 2 + 36 * positions * h * 4
    seen = half["activations"] - of_language
    assert 0.5e9 < seen < 2e9  # the encoder, trained, over one volume of 2744 patches
    assert half["peak"] == sum(
        half[name]
        for name in ("weights", "reference", "optimizer", "gradients", "casts", "activations", "head")
    )
    assert half["peak"] < 80 * 2**30  # one card of 80 GiB holds it


@pytest.mark.slow
@pytest.mark.parametrize("name", ["med3d_r1", "medvol_r1", "emrl", "medvr"])
def test_a_recipe_that_runs_here_has_a_plan_too(name, tmp_path):
    recipe = load(RECIPE.parents[1] / f"{name}.toml")
    stages = plan(recipe, tmp_path).stages
    assert [row.stage for row in stages] == [recipe.stage_name(at) for at in range(len(recipe.stages))]
    asking = {stage.kind for stage, row in zip(recipe.stages, stages, strict=True) if row.memory is not None}
    assert asking >= {"sft", "grpo", "evaluate", "audit"}
    assert "linear-probe" not in asking


def test_plan_lists_the_downloads_of_the_sets_in_use_with_size_and_licence(planned):
    downloads = "\n".join(planned["downloads"])
    assert "CT-RATE" in downloads
    assert "CC BY-NC-SA 4.0, about 20 TB" in downloads
    assert "RAD-ChestCT" in downloads
    assert "Qwen/Qwen2.5-3B-Instruct at aa8e72537993ba99e69dfaafa59ed015b17504d1, from the" in downloads
    assert "for model.language: 6.17 GB, Qwen Research License" in downloads
    assert "for service.judge.model: 14.22 GB" in downloads
    assert "OmniMedVQA" not in downloads


SIZES = {
    "model.language": '{ folder = "language" }', "service.judge.model": '{ folder = "judge" }',
    "model.encoder.size_zyx": "[8, 16, 16]", "model.encoder.patch_zyx": "[4, 8, 8]",
    "model.encoder.width": "24", "model.encoder.layers": "1", "model.encoder.heads": "2",
    "model.bridge.pool_zyx": "[1, 2, 2]", "stage.sft.steps": "2", "stage.sft.rows_per_step": "4",
    "stage.evaluate[0].max_new_tokens": "320", "stage.evaluate[1].max_new_tokens": "64",
    "stage.evaluate[2].max_new_tokens": "320", "stage.grpo.steps": "1", "stage.grpo.prompts_per_step": "2",
    "stage.grpo.max_new_tokens": "320",
}  # fmt: skip


@pytest.fixture(scope="module")
def small(folder):
    """The recipe beside miniatures of its data sets, a tiny Qwen2 and weights of a tiny encoder."""
    write("ct-rate", folder / "CT-RATE")
    write("rad-chestct", folder / "RAD-ChestCT")
    tiny_language(folder / "language")
    tiny_reward_model(folder / "judge")
    encoder = ViT3D(
        size_zyx=(8, 16, 16), patch_zyx=(4, 8, 8), width=24, layers=1, heads=2, stem="patch",
        windows=((-1000.0, 1000.0),), class_token=True,
    )  # fmt: skip
    (folder / "brgsa-encoder").mkdir()
    save_file(encoder.state_dict(), folder / "brgsa-encoder" / "weights.safetensors")
    return folder


# of twelve tosses some differ
CHANCE = {"stage.grpo.reward[1].use": '"random"', "stage.grpo.answers_per_prompt": "12"}


@pytest.mark.slow
def test_only_sizes_and_steps_differ_in_small(check_small):
    result = check_small()
    asked = {(row["dataset"], row["task"]) for row in result["data"]}
    assert asked >= {("rad-chestct", "mmvqa-rad-direct"), ("ct-rate", "vqa")}
    assert all(row["prompt_tokens"] > row["image_tokens"] == 2 for row in result["data"])


@pytest.mark.slow
def test_prompts_are_estimated_where_the_data_are_here_and_the_tokenizer_is_not(check_small):
    result = check_small(without={"model.language"})
    rows = [row for row in result["data"] if row["task"] == "mmvqa"]
    assert all(row["are_estimated"] and row["prompt"] == "" for row in rows)
    assert all(120 < row["prompt_tokens"] - row["image_tokens"] < 240 for row in rows)


@pytest.mark.slow
def test_the_recipe_runs_from_end_to_end_in_small(small, finished, results):
    assert results("04-grpo")["figures"]["steps"] == 1
    told = {row["name"] for row in results("05-evaluate")["rows"] if row["metric"] == "strict_accuracy"}
    assert told == {"mmvqa", "mmvqa-direct", "mmvqa-rad", "mmvqa-rad-direct"}
    before, after = (
        load_file(finished / "checkpoints" / name / "model.safetensors") for name in ("01-sft", "04-grpo")
    )
    encoder = load_file(small / "brgsa-encoder" / "weights.safetensors")
    # frozen in SFT, from the folder
    assert torch.equal(before["model.encoder.positions"], encoder["positions"])
    changed = [name for name in before if not torch.equal(before[name], after[name])]
    moved = {name.removeprefix("model.").split(".")[0] for name in changed}
    assert moved == {"encoder", "bridge", "language_model", "lm_head"}
    assert torch.equal(before["model.bridge.anchor"], after["model.bridge.anchor"])
