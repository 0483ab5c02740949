from __future__ import annotations

import pytest
import torch
from transformers.utils import logging

from evidcore.case import Case
from evidcore.testing.data import volume_case

logging.disable_progress_bar()
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def cases(tmp_path_factory) -> list[Case]:
    folder = tmp_path_factory.mktemp("volumes")
    return [volume_case(folder, seed) for seed in range(2)]
