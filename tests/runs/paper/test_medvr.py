"""MedVR's recipe at the paper's size: what `check` and `plan` say of it; and run in small."""

from pathlib import Path

import pytest
from evidcore_plugin_ct_data.miniatures import write
from evidcore_testing.models import tiny_vision_language

from evidcore.model.architecture import shipped

RECIPE = Path(__file__).parents[3] / "recipes" / "paper" / "medvr.toml"


@pytest.mark.slow
def test_check_counts_tokens_and_parameters_and_names_what_is_missing(checked):
    assert checked["visual_tokens"] == 16 * 16
    published = shipped()["Qwen/Qwen2.5-VL-7B-Instruct"].weights_bytes
    assert 2 * sum(checked["parameters"].values()) == published
    missing = "\n".join(checked["unchecked"])
    for name in ("dataset.pictures", "model.language"):
        assert name in missing


SIZES = {
    "dataset.pictures.path": '"set/OmniMedVQA"', "model.language": '{ folder = "language" }',
    "model.encoder.size": "56", "stage.evaluate[0].max_new_tokens": "112", "stage.grpo.steps": "2",
    "stage.grpo.prompts_per_step": "2", "stage.grpo.answers_per_prompt": "4",
    "stage.grpo.max_new_tokens": "112", "stage.grpo.learning_rate": "1e-3",
    "stage.evaluate[1].max_new_tokens": "112", "stage.audit.max_new_tokens": "112",
}  # fmt: skip


@pytest.fixture(scope="module")
def small(folder):
    """The recipe beside a miniature of its data set and a tiny Qwen2.5-VL."""
    write("omni-med-vqa", folder / "set")
    tiny_vision_language(folder / "language", "qwen2_5_vl")
    return folder


def test_only_sizes_and_steps_differ_in_small(check_small):
    result = check_small()
    # from the stage that trains with it on
    told = {row["stage"]: "zoom" in row["prompt"] for row in result["data"]}
    assert told == {"01-evaluate": False, "02-grpo": True, "03-evaluate": True, "04-audit": True}


@pytest.mark.slow
def test_the_recipe_runs_from_end_to_end_in_small(rewards_given, results):
    assert results("02-grpo")["figures"]["steps"] == 2
    groups, rewards = rewards_given("02-grpo")
    assert rewards == {"random", "choice-accuracy", "zoom-consensus"}
    assert {len(group["rollouts"]) for group in groups} == {4}
