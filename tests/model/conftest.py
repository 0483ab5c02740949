import dataclasses

import pytest
import torch
from evidcore_plugin_encoders.testing import tiny_vlm
from evidcore_plugin_phantoms.language.word_tokenizer import build_tokenizer
from evidcore_testing.data import FINDINGS
from evidcore_testing.fixtures import language_folder as language_folder
from evidcore_testing.fixtures import volume_cases
from transformers import PreTrainedTokenizerFast
from transformers.utils import logging

from evidcore.api import Case, Crop, Prompt, TextPart, VisualPart
from evidcore.model.processor import VolumeProcessor
from evidcore.model.vlm import VolumeVLM

logging.disable_progress_bar()
torch.set_num_threads(1)
cases = volume_cases(6)


@dataclasses.dataclass
class Small:
    """A model with sharp opinions, its processor, cases and prompts over them."""

    model: VolumeVLM
    processor: VolumeProcessor
    cases: list[Case]
    prompts: list[Prompt]


@pytest.fixture(scope="session")
def tokenizer(cases) -> PreTrainedTokenizerFast:
    texts = [case.report.text for case in cases] + [case.notes["impression"] for case in cases]
    return build_tokenizer(texts, FINDINGS)


@pytest.fixture
def small(language_folder, cases) -> Small:
    model, processor = tiny_vlm(language_folder, sharpness=6.0)
    texts = ["What is there?", "Is it on the left side?", "Which?", "What is there, and where?"]
    prompts = []
    for number, (case, text) in enumerate(zip(cases[: len(texts)], texts, strict=True)):
        parts = (VisualPart(crop=Crop(volume=case.volumes[0])), TextPart(text=text))
        prompts.append(Prompt(id=f"question-{number}", case=case, task="test", parts=parts))
    return Small(model, processor, cases[: len(texts)], prompts)
