"""The anchor is taken once and then stays: saved, loaded, trained around, and sharded around."""

import json
from pathlib import Path

import pytest
import torch
from evidcore_plugin_encoders.testing import tiny_vlm
from evidcore_testing import tiny_language, volume_case
from evidcore_testing.checks_reward import Letters
from transformers.utils import logging

from evidcore.builtin.rollouts import Plain
from evidcore.contracts.stage import NullSink
from evidcore.model import assemble
from evidcore.prompts.rows import PromptSet, PromptSource
from evidcore.registry import factory
from evidcore.reward.composer import NamedReward
from evidcore.train.settings import GrpoSettings
from evidcore.train.trl.grpo import grpo

PROGRAM = Path(__file__).with_name("sharded_program.py")
BRIDGE = {"use": "residual-alignment", "pool_zyx": [1, 1, 2]}

logging.disable_progress_bar()


@pytest.fixture
def made(tmp_path):
    """A fresh model with its processor, and the mean of its vocabulary worked out row by row."""
    language = tiny_language(tmp_path / "language")
    model, processor = tiny_vlm(language, sharpness=3.0, bridge=BRIDGE)
    rows = model.get_input_embeddings().weight.detach()
    return model, processor, sum(rows) / len(rows)


def test_the_anchor_is_the_mean_word_and_equal_after_save_and_load(made, tmp_path):
    model, processor, mean = made
    anchor = model.model.bridge.anchor
    torch.testing.assert_close(anchor, mean, rtol=1e-5, atol=1e-8)
    with torch.no_grad():  # what is saved must be the anchor, not the embeddings that it was taken from
        model.get_input_embeddings().weight.add_(1.0)
    assemble.save(model, processor, tmp_path / "saved")
    loaded, _ = assemble.load(tmp_path / "saved")
    assert torch.equal(loaded.model.bridge.anchor, anchor)
    assert torch.equal(loaded.model.bridge.scale, model.model.bridge.scale)
    loaded.model.bridge.set_anchor(loaded.get_input_embeddings().weight)
    assert torch.equal(loaded.model.bridge.anchor, anchor)


@pytest.mark.slow
def test_training_the_whole_model_by_rewards_moves_the_embeddings_and_not_the_anchor(made, tmp_path):
    model, processor, _ = made
    before = {name: item.clone() for name, item in model.state_dict().items()}
    task = factory.build("task", {"use": "choice", "think": False}, given={}, where="test")
    view = factory.build("view", {"use": "volume"}, given={}, where="test")
    cases = [volume_case(tmp_path / "volumes", seed) for seed in range(4)]
    source = PromptSource([PromptSet(name="choice", task=task, view=view, cases=cases)], seed=1)
    settings = GrpoSettings(
        train=("encoder", "bridge", "language"), steps=2, learning_rate=1e-3, prompts_per_step=2,
        answers_per_prompt=4, max_new_tokens=6, trl={"beta": 0.04},
    )  # fmt: skip
    rewards = [NamedReward(name="letters", reward=Letters())]
    run = {"seed": 3, "strategy": Plain(), "announce": NullSink()}
    grpo(model, processor, source, rewards, settings, tmp_path / "run", **run)
    loaded, _ = assemble.load(tmp_path / "run")
    for after in (model.state_dict(), loaded.state_dict()):
        for name in ("language_model.embed_tokens", "bridge.gate_out"):
            assert not torch.equal(after[f"model.{name}.weight"], before[f"model.{name}.weight"])
        for name in ("anchor", "scale", "anchor_taken"):
            assert torch.equal(after[f"model.bridge.{name}"], before[f"model.bridge.{name}"])


@pytest.mark.slow
def test_two_shards_hold_the_same_anchor_while_the_embeddings_move(made, tmp_path, torchrun):
    model, processor, _ = made
    assemble.save(model, processor, tmp_path / "saved")
    torchrun(2, PROGRAM, tmp_path / "saved", tmp_path)
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    assert first["loss"] == second["loss"] == pytest.approx(first["loss_of_the_whole_model"], rel=1e-5)
    for rank in (first, second):
        assert rank["is_sharded"]
        assert rank["embeddings_moved"] > 1e-4
        assert rank["anchor_is_equal"]
        assert rank["anchor"] == model.model.bridge.anchor.tolist()
    assert first["saved_anchor_is_equal"]
