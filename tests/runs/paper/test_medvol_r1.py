"""MedVol-R1's recipe at the paper's size: what `check` and `plan` say of it; and run in small."""

import json
import runpy
import tomllib
from pathlib import Path

import pytest
import transformers
from evidcore_plugin_ct_data.kits23_queries import TEMPLATES
from evidcore_plugin_ct_data.miniatures import write
from safetensors.torch import load_file

from evidcore.model.architecture import shipped

TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

RECIPE = Path(__file__).parents[3] / "recipes" / "paper" / "medvol_r1.toml"
WIDTH, TEXT_WIDTH, SQUARE = 1024, 2560, 4 * 1024
MERGER = 2 * SQUARE + (SQUARE + 1) * SQUARE + (SQUARE + 1) * TEXT_WIDTH
BRIDGE = 4 * MERGER - 2 * (SQUARE - WIDTH)  # one norm is over a patch, three over a square of four
ENCODER = (
    24 * (4 * WIDTH**2 + 4 * WIDTH + 8 * WIDTH**2 + 5 * WIDTH + 4 * WIDTH)  # attention, MLP, two norms
    + (3 * 2 * 16 * 16 + 1) * WIDTH + 48 * 48 * WIDTH  # patches of two frames, positions
)  # fmt: skip
HEADS, KEYS, HEAD, INNER, LAYERS = 32, 8, 128, 9728, 36
QUERY, KEY = HEADS * HEAD, KEYS * HEAD
LANGUAGE = (
    151936 * TEXT_WIDTH
    + TEXT_WIDTH
    + LAYERS
    * (2 * QUERY * TEXT_WIDTH + 2 * KEY * TEXT_WIDTH + 3 * INNER * TEXT_WIDTH + 2 * TEXT_WIDTH + 2 * HEAD)
)
ADAPTERS = LAYERS * 128 * (2 * (TEXT_WIDTH + QUERY) + 2 * (TEXT_WIDTH + KEY) + 3 * (TEXT_WIDTH + INNER))


@pytest.mark.slow
def test_check_counts_tokens_and_parameters(checked):
    assert checked["patch_grid_zyx"] == [64, 8, 8]
    assert checked["visual_tokens"] == 64 * 64
    assert checked["parameters"] == {"encoder": ENCODER, "bridge": BRIDGE, "language": LANGUAGE}
    weights = shipped()["Qwen/Qwen3-VL-4B-Instruct"].weights_bytes
    assert weights == 2 * (ENCODER + BRIDGE + LANGUAGE)


@pytest.mark.slow
def test_adapters_alone_are_trained(checked):
    for stage in checked["stages"]:
        assert (stage["trained"], stage["frozen"]) == (ADAPTERS, ENCODER + BRIDGE + LANGUAGE)


def test_check_names_what_is_not_here_and_what_gets_it(checked, alone):
    data, language, segmenter = checked["unchecked"]
    assert f"{alone.parent / 'CT-ORG'}: holds no files volume-0.nii.gz" in data
    assert "`hf download Qwen/Qwen3-VL-4B-Instruct --revision ebb281ec" in language
    assert "8.88 GB, Apache-2.0" in language
    assert segmenter.startswith("service.medsam2: weights of wanglab/MedSAM2")


@pytest.mark.slow
def test_plan_adds_up_by_hand(evid, alone):
    planned = json.loads(evid("plan", alone, "--json", "--out", alone.parent).stdout)
    sft, grpo = planned["stages"][0], planned["stages"][2]
    for stage in (sft, grpo):
        half = stage["memory"]["bfloat16"]
        assert half["weights"] == 4 * (ENCODER + BRIDGE + LANGUAGE)
        assert (half["gradients"], half["optimizer"]) == (4 * ADAPTERS, 8 * ADAPTERS)
        assert half["peak"] < 80 * 2**30  # one card of 80 GiB holds it
    tags = 64 * 8  # "slice 12:" and the marks around each slice
    assert grpo["lengths"]["prompt_tokens"] == 64 * 64 + tags + 256
    assert grpo["lengths"]["ground"] == "assumed"
    downloads = "\n".join(planned["downloads"])
    assert "for model.language: 8.88 GB, Apache-2.0" in downloads
    assert "wanglab/MedSAM2 at e4a6f35edd7e091619cbc0750f462f1574e23955" in downloads


SIZES = TABLE["sizes"]
KITS23 = {
    "dataset.organs": '{ use = "kits23", path = "kits23", queries = "template.json" }',
    "dataset.organs.validation_share": "0.0",
    **{f"task.{name}.ask": '"queries"' for name in ("answer", "reason")},
    **{f"task.{name}.descriptions": '""' for name in ("answer", "reason")},
}
M3D_SEG = {
    "dataset.organs": '{ use = "m3d-seg", path = "M3D_Seg", codes = ["0012"], axes = { "0012" = "LPS" } }',
    "dataset.organs.validation_share": "0.0",
    "model.encoder.windows": "[]",  # no HU
}


@pytest.fixture(scope="module")
def small(folder, write_qwen3):
    """The recipe beside a miniature of its data set, a tiny Qwen3-VL, and a tiny model that tracks."""
    write("ct-org", folder / "CT-ORG")
    (folder / "term_dictionary.json").write_text(json.dumps({"liver": ["the largest gland of the body"]}))
    write_qwen3(folder / "language")
    seeded = runpy.run_path(str(RECIPE.parents[2] / "plugins/evidcore-plugin-medsam2/tests/seeded.py"))
    seeded["seeded_model"](seeded["small_config"]()).save_pretrained(folder / "sam")
    return folder


@pytest.mark.slow
def test_only_sizes_and_steps_differ_in_small(check_small):
    result = check_small()
    # a slice of 64 pixels is 2 x 2 tokens
    assert all(row["prompt_tokens"] > row["image_tokens"] == 4 * 4 for row in result["data"])
    assert any("the largest gland of the body" in row["prompt"] for row in result["data"])


@pytest.mark.slow
def test_m3d_seg_and_the_implicit_queries_of_kits23_are_variants(small, check_small):
    write("m3d-seg", small / "M3D_Seg")
    check_small(M3D_SEG)
    write("kits23", small / "kits23")
    texts = {name: [f"{name}, {{kidney_side}}"] for name in TEMPLATES}
    (small / "template.json").write_text(json.dumps(texts))
    result = check_small(KITS23)
    assert all("_only_" in row["prompt"] and '[{"slice": 12' in row["prompt"] for row in result["data"])


@pytest.mark.slow
def test_the_recipe_runs_from_end_to_end_in_small(small, finished, results):
    assert results("03-grpo")["figures"]["steps"] == 2
    assert {row["metric"] for row in results("04-evaluate")["rows"]} >= {"dsc", "iou", "oracle_dsc"}
    before, after = (
        load_file(finished / "checkpoints" / name / "model.safetensors") for name in ("01-sft", "03-grpo")
    )
    published = load_file(small / "language" / "model.safetensors")
    eye = "blocks.0.attn.qkv.weight"
    assert (before[f"model.encoder.eyes.visual.{eye}"] == published[f"model.visual.{eye}"]).all()
    moved = {name for name in before if not before[name].equal(after[name])}
    assert moved
    assert all(name.startswith("model.language_model.layers.") for name in moved)


@pytest.mark.slow
def test_the_trained_model_goes_back_to_the_published_form(evid, finished, tmp_path):
    evid("export", finished, tmp_path / "model", "--format", "published")
    model = transformers.AutoModelForImageTextToText.from_pretrained(tmp_path / "model")
    assert type(model) is transformers.Qwen3VLForConditionalGeneration
    processor = transformers.AutoProcessor.from_pretrained(tmp_path / "model")
    assert type(processor) is transformers.Qwen3VLProcessor
    there = model.state_dict()
    parts = {"encoder.eyes.visual": "visual", "bridge.visual": "visual", "language_model": "language_model"}
    weights = load_file(finished / "checkpoints" / "03-grpo" / "model.safetensors")
    assert len(there) == len(weights)
    for own, published in parts.items():
        of_part = [name for name in weights if name.startswith(f"model.{own}.")]
        assert of_part
        for name in of_part:
            assert there[name.replace(f"model.{own}", f"model.{published}")].equal(weights[name]), name
    assert "vLLM and others read it without" in (tmp_path / "model" / "README.md").read_text()
