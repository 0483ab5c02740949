"""GRPO learns from answers of a server that is given the weights before each step."""

import json

import pytest
import torch
from evidcore_plugin_encoders.testing import tiny_vlm
from evidcore_plugin_vllm import weights
from evidcore_testing.models import tiny_language
from protocol_server import protocol_server
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

from evidcore.builtin.rewards import Random
from evidcore.builtin.rollouts import Plain
from evidcore.contracts.stage import NullSink
from evidcore.errors import RunError
from evidcore.model import parts
from evidcore.prompts.rows import PromptSet, PromptSource
from evidcore.registry import factory
from evidcore.reward.composer import NamedReward
from evidcore.train.settings import GrpoSettings, Lora
from evidcore.train.trl import stage
from evidcore.train.trl.grpo import make_trainer


class Heard(NullSink):
    """Keeps the figures of steps."""

    def __init__(self):
        self.steps = []

    def step_finished(self, step, metrics):
        self.steps.append(dict(metrics))


@pytest.fixture
def train(language_folder, cases, engine, tmp_path):
    """Return a function that takes two steps with answers of a server."""

    def run(server, train=("bridge", "language"), **changed):
        model, processor = tiny_vlm(language_folder, sharpness=3.0)
        task = factory.build("task", {"use": "choice", "think": False}, given={}, where="test")
        view = factory.build("view", {"use": "volume"}, given={}, where="test")
        source = PromptSource([PromptSet(name="choice", task=task, view=view, cases=cases)], seed=1)
        settings = GrpoSettings(
            train=train, steps=2, learning_rate=1e-2, prompts_per_step=2, answers_per_prompt=3,
            max_new_tokens=4, pixel_check_every_steps=0, **changed,
        )  # fmt: skip
        heard = Heard()
        trainer = make_trainer(
            model, processor, source, [NamedReward(name="random", reward=Random(), package="test")],
            settings, tmp_path / "grpo", seed=3, announce=heard, strategy=Plain(), engine=engine(server),
        )  # fmt: skip
        stage.train(trainer, tmp_path / "grpo", resume=False)
        return model, heard.steps

    return run


@pytest.fixture
def served(volume_model, tmp_path):
    """Lay down the model that training starts from, as it is served."""
    weights.write_whole(*volume_model[:2], tmp_path / "weights", "embeddings")
    return tmp_path / "weights"


def paths(server):
    return [path for path, _ in server.requests]


@pytest.mark.slow
def test_whole_weights_are_read_again_before_each_step(train, served):
    with protocol_server(served) as server:
        model, steps = train(server)
    assert paths(server).count("/collective_rpc") == paths(server).count("/reset_prefix_cache") == 2
    for step in steps:  # random weights give tokens of images, which are never sampled, a chance that counts
        assert step["sampling_difference_most"] < 0.03
        assert step["sampling_weight"] == pytest.approx(1.0, abs=0.1)
    assert steps[0]["grad_norm"] > 0
    start, end = AutoModelForCausalLM.from_pretrained(served), model.get_output_embeddings().weight
    assert not torch.equal(start.lm_head.weight, end)  # the last step's came after the last answers


@pytest.mark.slow
def test_an_adapter_is_loaded_before_each_step_and_the_one_before_let_go(train, served, tmp_path):
    with protocol_server(served, dev_mode=False) as server:
        _, steps = train(server, lora=Lora(rank=2, alpha=64.0))
    loaded = [body for path, body in server.requests if path == "/v1/load_lora_adapter"]
    unloaded = [body["lora_name"] for path, body in server.requests if path == "/v1/unload_lora_adapter"]
    names = [body["lora_name"] for body in loaded]
    assert len(names) == len(set(names)) == 2
    assert unloaded == names[:1]
    assert {body["model"] for path, body in server.requests if "prompt_embeds" in body} == set(names)
    assert [step["sampling_difference_most"] < 0.03 for step in steps] == [True, True]
    [folder] = (path for path in served.iterdir() if path.is_dir())
    assert folder.name == names[1]
    config = json.loads((folder / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"]) == (2, 64.0)
    moved = load_file(folder / "adapter_model.safetensors")
    assert "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight" in moved
    assert any(value.abs().max() > 0 for name, value in moved.items() if "lora_B" in name)  # it has learnt


def test_a_server_without_adapters_is_refused(train, served):
    said = r"/v1/load_lora_adapter answered HTTP 404.*VLLM_ALLOW_RUNTIME_LORA_UPDATING=True and --enable-lora"
    with protocol_server(served, allows_adapters=False) as server, pytest.raises(RunError, match=said):
        train(server, lora=Lora(rank=2))


@pytest.mark.slow
@pytest.mark.parametrize("lora", [None, Lora(rank=2)])
def test_weights_that_are_not_those_that_are_trained_are_noticed(train, tmp_path, lora):
    other = tiny_language(tmp_path / "other", seed=5)
    with protocol_server(other) as server:
        said = r"'policy' gives its own tokens log-probabilities that are \d\.\d+ nats"
        with pytest.raises(RunError, match=said):
            train(server, lora=lora)
        assert (tmp_path / "weights" / "model.safetensors").is_file()
    with protocol_server(tmp_path / "weights") as server:  # laid down for it
        train(server, lora=lora)


def test_a_server_gets_the_matrices_that_4_bits_stand_for(volume_model, tmp_path):
    pytest.importorskip("bitsandbytes", reason="pip install 'evidcore[quantization]'")
    model, processor, _ = volume_model
    parts.quantise(model.model.language_model)
    weights.write_whole(model, processor, tmp_path, "embeddings")
    served = AutoModelForCausalLM.from_pretrained(tmp_path).model.layers[1].mlp.up_proj
    expected = parts.unpacked(model)["model.language_model.layers.1.mlp.up_proj.weight"]
    assert torch.equal(served.weight, expected.float())


def test_an_engine_that_was_told_nothing_new_tells_the_server_nothing(volume_model, engine, served, sampler):
    with protocol_server(served) as server:
        made = engine(server)
        sampler(volume_model, made)
        before = len(server.requests)
        sampler(volume_model, made)
        assert len(server.requests) == before
        with torch.no_grad():
            volume_model[0].lm_head.weight[3] += 0.5
        sampler(volume_model, made)
        assert "/collective_rpc" in paths(server)[before:]


def test_a_published_model_is_laid_down_as_it_was_published(seeing_model, seeing_folder, tmp_path):
    model, processor, _ = seeing_model
    weights.write_whole(model, processor, tmp_path / "weights", "images")
    folders = (seeing_folder, tmp_path / "weights")
    first, again = (AutoModelForImageTextToText.from_pretrained(place).state_dict() for place in folders)
    assert first.keys() == again.keys()
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_a_hash_tells_names_shapes_apart_and_values():
    one = {"a": torch.zeros(2), "b": torch.ones(2)}
    assert weights.digest(one) == weights.digest(dict(reversed(one.items())))
    others = [{"a": torch.ones(2), "b": torch.zeros(2)}, {"a": torch.zeros(2)}, {**one, "b": one["b"].half()}]
    assert len({weights.digest(each) for each in (one, *others)}) == 4
