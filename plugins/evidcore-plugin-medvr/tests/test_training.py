"""A model learns to call a tool, and goes on from what the tool shows."""

import pytest
import torch
from evidcore_plugin_medvr.consensus import ZoomConsensus
from evidcore_plugin_medvr.regrounding import EntropyRegrounding
from evidcore_plugin_medvr.tools import Zoom
from evidcore_testing import tiny_language
from evidcore_testing.checks_reward import Letters
from transformers import AutoModelForCausalLM, AutoTokenizer

from evidcore.api import Crop
from evidcore.builtin.views import Slices
from evidcore.contracts.stage import NullSink
from evidcore.model import assemble
from evidcore.prompts.rows import PromptSet, PromptSource
from evidcore.registry import factory
from evidcore.reward.composer import NamedReward
from evidcore.train.settings import GrpoSettings, SftSettings
from evidcore.train.trl.grpo import grpo
from evidcore.train.trl.sft import sft


class Heard(NullSink):
    """Keeps the answers of a step."""

    def rollouts_judged(self, step, groups):
        self.rollouts = [item for group in groups for item in group["rollouts"]]


def slices_vlm(folder):
    """Give a tiny model that is shown slices of 32 x 32 pixels in 4 tokens, and its processor."""
    torch.manual_seed(0)
    language = AutoModelForCausalLM.from_pretrained(folder)
    encoder = {"use": "vit3d", "size_zyx": [1, 32, 32], "patch_zyx": [1, 8, 8], "width": 24, "heads": 2}
    return assemble.assemble(
        language, AutoTokenizer.from_pretrained(folder),
        factory.build("encoder", encoder, given={}, where="test"), encoder_table=encoder,
        bridge_table={"use": "projection", "pool_zyx": [1, 2, 2]}, view_table={"use": "slices", "slices": 1},
    )  # fmt: skip


@pytest.mark.slow
def test_a_cold_start_teaches_calls_that_grpo_forks_and_pays_and_goes_on_from(cases, tmp_path):
    torch.set_num_threads(1)
    model, processor = slices_vlm(tiny_language(tmp_path / "language"))
    view = Slices(slices=1)
    zoom = Zoom(view)
    # the whole slice each time: a tiny model learns to spell one call
    table = {"use": "zoom-choice", "tool": {"use": "zoom"}, "smallest_side": 1.0}
    asking = factory.build("task", table, given={"view": view, "cache_folder": tmp_path / "c"}, where="test")
    strategy = EntropyRegrounding([zoom], max_tool_calls=1, base_probability=1.0, gate=False)
    source = PromptSource([PromptSet(name="zoom-choice", task=asking, view=view, cases=cases)], seed=1)
    settings = SftSettings(train=("bridge", "language"), steps=160, learning_rate=1e-2, rows_per_step=4)
    sft(model, processor, source, settings, tmp_path / "sft", seed=1, announce=NullSink(), strategy=strategy)
    settings = GrpoSettings(
        train=("bridge", "language"), steps=1, learning_rate=1e-3, prompts_per_step=2, answers_per_prompt=4,
        max_new_tokens=140, temperature=0.3, trl={"beta": 0.01},
    )  # fmt: skip
    rewards = [
        NamedReward(name="letters", reward=Letters()),
        NamedReward(name="consensus", reward=ZoomConsensus(success="letters")),
    ]
    heard = Heard()
    grpo(
        model, processor, source, rewards, settings, tmp_path / "grpo", seed=1, announce=heard,
        strategy=strategy,
    )  # fmt: skip
    looked = [item for item in heard.rollouts if item["turns"] and item["turns"][0]["crops"]]
    [turn, *_] = looked[0]["turns"]
    assert [(item["tool"], item["error"]) for item in turn["actions"]] == [("zoom", None)]
    assert turn["reply"].endswith("closer:<image>")
    [crop] = map(Crop.parse_uri, turn["crops"])
    assert crop.is_slice
    assert all("closer" not in item["text"] for item in looked)
    assert any(item["parent"] is not None for item in heard.rollouts)
    paid = [item["rewards"] for item in looked if item["rewards"]["letters"]["value"]]
    assert {item["consensus"]["value"] for item in paid} == {1.0}
