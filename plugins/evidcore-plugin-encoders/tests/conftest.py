import pytest
import torch
from evidcore_testing.data import volume_case
from transformers.utils import logging

from evidcore.api import Case

logging.disable_progress_bar()
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def cases(tmp_path_factory) -> list[Case]:
    folder = tmp_path_factory.mktemp("volumes")
    return [volume_case(folder, seed) for seed in range(2)]
