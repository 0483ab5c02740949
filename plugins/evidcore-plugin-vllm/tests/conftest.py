import contextlib
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from evidcore_plugin_encoders.testing import seeing_vlm, tiny_vlm
from evidcore_plugin_vllm.engine import Vllm
from evidcore_plugin_vllm.weights import write_whole
from evidcore_testing.fixtures import language_folder as language_folder
from evidcore_testing.fixtures import volume_cases
from evidcore_testing.models import tiny_vision_language
from PIL import Image
from transformers.utils import logging

from evidcore.api import Case, Prompt, TextPart, VolumeRef
from evidcore.model.policy import sampling_of
from evidcore.registry import factory
from evidcore.train.sampler import PolicySampler

sys.path.insert(0, str(Path(__file__).parent))
from protocol_server import protocol_server

logging.disable_progress_bar()
torch.set_num_threads(1)
cases = volume_cases(4)


@pytest.fixture
def volume_model(language_folder, cases):
    """Give a model that shows a volume in 4 tokens, its processor, and a prompt about each case."""
    model, processor = tiny_vlm(language_folder, sharpness=3.0)
    view = factory.build("view", {"use": "volume"}, given={}, where="test")
    return model.eval(), processor, prompts_of(cases, view)


@pytest.fixture(scope="session")
def seeing_folder(tmp_path_factory):
    return tiny_vision_language(tmp_path_factory.mktemp("qwen") / "vl", "qwen2_5_vl")


@pytest.fixture
def seeing_model(seeing_folder, tmp_path):
    """Give Qwen2.5-VL, tiny, as a run assembles it, and a prompt about each of two photographs."""
    eyes = {"size": 112, "slices": 1, "windows": []}
    model, processor = seeing_vlm(seeing_folder, eyes=eyes, view={"use": "image"})
    view = factory.build("view", {"use": "image"}, given={}, where="test")
    rng, shown = np.random.default_rng(0), []
    for number in range(2):
        path = tmp_path / f"{number}.png"
        Image.fromarray(rng.integers(0, 256, (112, 112, 3), dtype=np.uint8)).save(path)
        ref = VolumeRef(path=str(path), intensity="arbitrary")
        shown.append(Case(id=f"{number}", patient=None, volumes=(ref,)))
    return model.eval(), processor, prompts_of(shown, view)


def prompts_of(cases, view):
    return [
        Prompt(id=case.id, case=case, task="test", parts=(*view.render(case), TextPart(text="What is it?")))
        for case in cases
    ]


@pytest.fixture
def sampler():
    """Return a function that gives a sampler of a model's answers."""

    def build(parts, engine=None, *, temperature=1.0, tokens=7, strategy=None, **limits):
        model, processor, prompts = parts
        settings = sampling_of(model, processor, max_new_tokens=tokens, temperature=temperature, **limits)
        positions = {id(prompt): number for number, prompt in enumerate(prompts)}
        return PolicySampler(model, processor, settings, positions, seed=1, engine=engine, strategy=strategy)

    return build


@pytest.fixture
def engine(tmp_path):
    """Return a function that gives the component, for a server."""

    def build(server, **changed):
        usual = {"url": server.url, "model": "policy", "weights": str(tmp_path / "weights")}
        return Vllm(**{**usual, "sends_images_away": True, "timeout_s": 60.0, **changed})

    return build


@pytest.fixture
def served(engine, tmp_path):
    """Return a function that serves a model; it gives the server and the component that is for it."""

    @contextlib.contextmanager
    def serve(parts, settings=None, **flags):
        inputs = "images" if parts[0].config.vision else "embeddings"
        write_whole(parts[0], parts[1], tmp_path / "weights", inputs)
        with protocol_server(tmp_path / "weights", **flags) as server:
            yield server, engine(server, inputs=inputs, **(settings or {}))

    return serve
