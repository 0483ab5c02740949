import pytest
import torch
from evidcore_plugin_phantoms.language.word_tokenizer import build_tokenizer
from evidcore_testing.data import FINDINGS
from evidcore_testing.fixtures import volume_cases
from transformers.utils import logging

logging.disable_progress_bar()
torch.set_num_threads(1)
cases = volume_cases(6)


@pytest.fixture(scope="session")
def tokenizer(cases):
    texts = [case.report.text for case in cases] + [case.notes["impression"] for case in cases]
    return build_tokenizer(texts, FINDINGS)
