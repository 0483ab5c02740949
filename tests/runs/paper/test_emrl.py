"""E-MRL's recipe at a size like the paper's: what `check` and `plan` say of it; and run in small."""

import json
import shutil
from pathlib import Path

import pytest
from evidcore_plugin_ct_data.miniatures import write
from evidcore_testing.models import tiny_vision_language
from transformers import AutoTokenizer, Qwen2VLImageProcessor, Qwen3VLProcessor, Qwen3VLVideoProcessor

from evidcore.recipe import load
from evidcore.train.grpo import Grpo

RECIPE = Path(__file__).parents[3] / "recipes" / "paper" / "emrl.toml"


@pytest.mark.slow
def test_check_counts_tokens_and_names_what_is_missing(checked):
    assert checked["visual_tokens"] == 64 * 64
    missing = "\n".join(checked["unchecked"])
    for name in ("dataset.atlas", "model.language", "service.reader"):
        assert name in missing


def test_the_settings_are_those_of_the_reconstruction():
    recipe = load(RECIPE)
    (grpo,) = (stage for stage in recipe.stages if isinstance(stage, Grpo))
    assert (grpo.answers_per_prompt, grpo.learning_rate, grpo.temperature) == (8, 1e-6, 1.0)
    assert (grpo.trl["beta"], grpo.trl["epsilon"]) == (0.01, 0.2)
    assert [(reward["use"], reward["weight"]) for reward in grpo.reward] == [
        ("format", 0.1), ("report-findings", 0.5), ("key-slice", 0.2), ("cross-view", 0.2),
    ]  # fmt: skip
    assert (grpo.rollout["use"], grpo.rollout["trained"]) == ("verify", False)


SIZES = {
    "model.language": '{ folder = "language" }',
    "service.reader": '{ kind = "reader", use = "model-reader", folder = "language", max_new_tokens = 8, '
    'encoder = { use = "native-vision", size = 64, windows = [[-160, 240]] } }',
    "model.view.slices": "4",
    "model.encoder.size": "64",
    "stage.sft.steps": "2",
    "stage.sft.rows_per_step": "2",
    "stage.sft.lora.rank": "4",
    "stage.evaluate[0].max_new_tokens": "96",
    "stage.grpo.lora.rank": "4",
    "stage.grpo.steps": "2",  # the first one warms up
    "stage.grpo.prompts_per_step": "2",
    "stage.grpo.max_new_tokens": "96",
    "stage.grpo.learning_rate": "1e-3",
    "stage.evaluate[1].max_new_tokens": "96",
    "stage.audit.max_new_tokens": "96",
    "stage.audit.data[0].split": '"train"',  # the miniature has one sick patient to test on
}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The recipe beside a miniature of its data set and a tiny Qwen3-VL, which is the reader too."""
    folder = tmp_path_factory.mktemp("small")
    shutil.copy(RECIPE, folder / RECIPE.name)
    write("abdomen-atlas-3-mini", folder / "AbdomenAtlas3.0Mini")
    tiny_vision_language(folder / "language", "qwen3_vl")
    tokenizer = AutoTokenizer.from_pretrained(folder / "language")
    Qwen3VLProcessor(
        Qwen2VLImageProcessor(patch_size=16), tokenizer, Qwen3VLVideoProcessor(), tokenizer.chat_template
    ).save_pretrained(folder / "language")
    return folder


@pytest.mark.slow
def test_only_sizes_and_steps_differ_in_small(evid, small, changes):
    result = json.loads(evid("check", small / RECIPE.name, "--json", *changes).stdout)
    assert result["unchecked"] == []
    assert all("name the slice" in row["prompt"] for row in result["data"])


@pytest.mark.slow
def test_the_recipe_runs_from_end_to_end_in_small(evid, small, changes):
    chance = ["--set", 'stage.grpo.reward[0]={use="random"}']  # a model that knows nothing earns nothing else
    words = [small / RECIPE.name, "--json", "--out", small / "runs", *changes, *chance]
    folder = Path(json.loads(evid("run", *words).stdout)["run"])
    assert json.loads((folder / "results" / "03-grpo.json").read_text())["figures"]["steps"] == 2
    lines = (folder / "rollouts" / "03-grpo.jsonl").read_text().splitlines()
    groups = [json.loads(line) for line in lines]
    rewards = {name for group in groups for item in group["rollouts"] for name in item["rewards"]}
    assert rewards == {"random", "report-findings", "key-slice", "cross-view"}
    rows = json.loads((folder / "results" / "04-evaluate.json").read_text())["rows"]
    assert {row["metric"] for row in rows} >= {"grounded_accuracy", "evidence_hit_rate", "omission_rate"}
