"""E-MRL's recipe at a size like the paper's: what `check` and `plan` say of it; and run in small."""

import tomllib
from pathlib import Path

import pytest
from evidcore_plugin_ct_data.miniatures import write

TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

RECIPE = Path(__file__).parents[3] / "recipes" / "paper" / "emrl.toml"


@pytest.mark.slow
def test_check_counts_tokens_and_names_what_is_missing(checked):
    assert checked["visual_tokens"] == 64 * 64
    missing = "\n".join(checked["unchecked"])
    for name in ("dataset.atlas", "model.language", "service.reader"):
        assert name in missing


SIZES = TABLE["sizes"]


@pytest.fixture(scope="module")
def small(folder, write_qwen3):
    """The recipe beside a miniature of its data set and a tiny Qwen3-VL, which is the reader too."""
    write("abdomen-atlas-3-mini", folder / "AbdomenAtlas3.0Mini")
    write_qwen3(folder / "language")
    return folder


@pytest.mark.slow
def test_only_sizes_and_steps_differ_in_small(check_small):
    result = check_small()
    assert all("name the slice" in row["prompt"] for row in result["data"])


@pytest.mark.slow
def test_the_recipe_runs_from_end_to_end_in_small(rewards_given, results):
    assert results("03-grpo")["figures"]["steps"] == 2
    _, rewards = rewards_given("03-grpo")
    assert rewards == {"random", "report-findings", "key-slice", "cross-view"}
    measured = {row["metric"] for row in results("04-evaluate")["rows"]}
    assert measured >= {"grounded_accuracy", "evidence_hit_rate", "omission_rate"}
