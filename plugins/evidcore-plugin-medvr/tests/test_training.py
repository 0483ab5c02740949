"""A model learns to call a tool, and goes on from what the tool shows."""

from __future__ import annotations

import pytest
import torch
from evidcore_plugin_encoders.testing import tiny_vlm
from evidcore_plugin_medvr.consensus import ZoomConsensus
from evidcore_plugin_medvr.regrounding import EntropyRegrounding
from evidcore_plugin_medvr.tools import Zoom
from evidcore_plugin_medvr.zoom_first import FirstLook, ZoomChoice
from evidcore_plugin_phantoms.slices import PhantomSlices
from evidcore_testing import tiny_language, volume_case
from transformers import AutoModelForCausalLM, AutoTokenizer

from evidcore.api import Answer, Crop, Reward, Score
from evidcore.builtin.choice import Choice
from evidcore.builtin.views import Slices, Volume
from evidcore.model import assemble
from evidcore.prompts.rows import PromptSet, PromptSource
from evidcore.registry import factory
from evidcore.reward.composer import NamedReward
from evidcore.train.settings import GrpoSettings, NullSink, SftSettings
from evidcore.train.trl.grpo import grpo
from evidcore.train.trl.sft import sft

CALL = '<tool_call>{"name": "crop", "arguments": {"slice": 6, "box": [0, 0, 1000, 1000]}}</tool_call>'


class Calling(Choice):
    """Asks for a call: what a model learns from it is to call."""

    def gold(self, prompt):
        return CALL, ()

    def parse(self, prompt, completion):
        return Answer(text=completion, malformed=None if completion == CALL else "no call", value=completion)


class Letters(Reward):
    """The share of letters in an answer: sampled answers differ in it."""

    def __call__(self, rollouts, earlier):
        return [Score(value=sum(map(str.isalpha, item.text)) / max(len(item.text), 1)) for item in rollouts]


class Heard(NullSink):
    """Keeps the answers of a step."""

    def rollouts_judged(self, step, groups):
        self.rollouts = [item for group in groups for item in group["rollouts"]]


@pytest.mark.slow
def test_a_model_that_learnt_to_call_a_tool_goes_on_from_what_it_gave(tmp_path):
    torch.set_num_threads(1)
    model, processor = tiny_vlm(tiny_language(tmp_path / "language"), sharpness=3.0)
    cases = [volume_case(tmp_path / "volumes", seed) for seed in range(8)]
    calling, asked = (
        PromptSource([PromptSet(name="choice", task=task(think=False), view=Volume(), cases=cases)], seed=1)
        for task in (Calling, Choice)
    )
    tool = factory.build("tool", {"use": "crop"}, given={"view": Volume()}, where="test")
    strategy = factory.build(
        "rollout", {"use": "tool-call", "calls": 1}, given={"tools": [tool]}, where="test"
    )
    settings = SftSettings(train=("bridge", "language"), steps=60, learning_rate=1e-2, rows_per_step=2)
    sft(
        model, processor, calling, settings, tmp_path / "sft", seed=1, announce=NullSink(), strategy=strategy
    )  # fmt: skip
    settings = GrpoSettings(
        train=("bridge", "language"), steps=1, learning_rate=1e-3, prompts_per_step=2, answers_per_prompt=4,
        max_new_tokens=140, temperature=0.3, trl={"beta": 0.01},
    )  # fmt: skip
    rewards, heard = [NamedReward(name="letters", reward=Letters())], Heard()
    grpo(
        model, processor, asked, rewards, settings, tmp_path / "grpo", seed=1, announce=heard,
        strategy=strategy,
    )  # fmt: skip
    called = [item for item in heard.rollouts if item["turns"]]
    assert called
    [turn] = called[0]["turns"][:1]
    assert turn["text"] == CALL
    assert [(item["tool"], item["error"]) for item in turn["actions"]] == [("crop", None)]
    assert turn["reply"] == "slice 6, closer:<image>"
    [crop] = map(Crop.parse_uri, turn["crops"])
    assert crop.box_zyx == (0, 12, 0, 16, 0, 16)
    assert all("closer" not in item["text"] for item in called)


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


def trained(folder, look, *, sft_steps, annotated=True, **options):
    """Return the model and rollouts of a cold start and GRPO with all of MedVR's parts."""
    torch.set_num_threads(1)
    model, processor = slices_vlm(tiny_language(folder / "language"))
    view = Slices(slices=1)
    phantoms = PhantomSlices(
        folder / "c", train_cases=8, validation_cases=0, test_cases=0, annotated=annotated
    )
    cases = list(phantoms.cases("train"))
    assert all(bool(case.masks) == bool(case.findings) == annotated for case in cases)
    zoom = Zoom(view)
    asking = ZoomChoice(view, folder / "c", tool=zoom, look=look)
    strategy = EntropyRegrounding([zoom], calls=1, base_probability=1.0, gate=False)
    source = PromptSource([PromptSet(name="zoom-choice", task=asking, view=view, cases=cases)], seed=1)
    settings = SftSettings(train=("bridge", "language"), steps=sft_steps, learning_rate=1e-2, rows_per_step=4)
    sft(model, processor, source, settings, folder / "sft", seed=1, announce=NullSink(), strategy=strategy)
    settings = GrpoSettings(
        train=("bridge", "language"), prompts_per_step=2, answers_per_prompt=4,
        trl={"beta": 0.01}, **options,
    )  # fmt: skip
    rewards = [
        NamedReward(name="letters", reward=Letters()),
        NamedReward(name="consensus", reward=ZoomConsensus(success="letters")),
    ]
    heard = Heard()
    grpo(
        model, processor, source, rewards, settings, folder / "grpo", seed=1, announce=heard,
        strategy=strategy,
    )  # fmt: skip
    return model, heard.rollouts


@pytest.mark.slow
def test_a_cold_start_teaches_calls_that_grpo_forks_and_pays(tmp_path):
    # the whole slice each time: a tiny model learns to spell one call
    _, rollouts = trained(
        tmp_path, FirstLook(smallest_side=1.0), sft_steps=160,
        steps=1, learning_rate=1e-3, max_new_tokens=140, temperature=0.3,
    )  # fmt: skip
    looked = [item for item in rollouts if item["turns"] and item["turns"][0]["crops"]]
    assert looked
    assert any(item["parent"] is not None for item in rollouts)
    assert {
        item["rewards"]["consensus"]["value"] for item in looked if item["rewards"]["letters"]["value"]
    } == {1.0}
