from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast
from transformers.utils import logging

import evidcore.contracts  # noqa: F401 (component kinds are told by it)
from evidcore.case import Case, Crop, Prompt, TextPart, VisualPart
from evidcore.model import assemble
from evidcore.model.language import build_tokenizer
from evidcore.model.processor import VolumeProcessor
from evidcore.model.vlm import VolumeVLM
from evidcore.plugins import factory
from evidcore.testing.data import FINDINGS, volume_case
from evidcore.testing.models import tiny_language

ENCODER = {
    "use": "vit3d",
    "size_zyx": [8, 16, 16],
    "patch_zyx": [4, 8, 8],
    "width": 24,
    "heads": 2,
    "stem": "patch",
}
BRIDGE = {"use": "projection", "pool_zyx": [1, 1, 2]}
VIEW = {"use": "volume"}

logging.disable_progress_bar()
torch.set_num_threads(1)


@dataclasses.dataclass
class Small:
    """A model with sharp opinions, its processor, cases and prompts over them."""

    model: VolumeVLM
    processor: VolumeProcessor
    cases: list[Case]
    prompts: list[Prompt]


@pytest.fixture(scope="session")
def language_folder(tmp_path_factory) -> Path:
    return tiny_language(tmp_path_factory.mktemp("language") / "tiny")


@pytest.fixture(scope="session")
def cases(tmp_path_factory) -> list[Case]:
    folder = tmp_path_factory.mktemp("volumes")
    return [volume_case(folder, seed) for seed in range(6)]


@pytest.fixture(scope="session")
def tokenizer(cases) -> PreTrainedTokenizerFast:
    texts = [case.report.text for case in cases] + [case.notes["impression"] for case in cases]
    return build_tokenizer(texts, FINDINGS)


@pytest.fixture
def small(language_folder, cases) -> Small:
    language = AutoModelForCausalLM.from_pretrained(language_folder)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        encoder = factory.build("encoder", ENCODER, given={}, where="test")
        for weight in language.parameters():
            if weight.dim() > 1:
                weight.mul_(6)  # random weights of the usual size say nearly the same whatever they see
    tokenizer = AutoTokenizer.from_pretrained(language_folder)
    model, processor = assemble.assemble(
        language, tokenizer, encoder, encoder_table=ENCODER, bridge_table=BRIDGE, view_table=VIEW
    )
    texts = ["What is there?", "Is it on the left side?", "Which?", "What is there, and where?"]
    prompts = [
        Prompt(
            id=f"question-{number}",
            case=case,
            task="test",
            parts=(VisualPart(crop=Crop(volume=case.volumes[0])), TextPart(text=text)),
        )
        for number, (case, text) in enumerate(zip(cases[: len(texts)], texts, strict=True))
    ]
    return Small(model, processor, cases[: len(texts)], prompts)
