import sys
from pathlib import Path

import torch
from evidcore_testing.fixtures import evid as evid
from evidcore_testing.fixtures import torchrun as torchrun
from evidcore_testing.fixtures import volume_cases
from transformers.utils import logging

sys.path.insert(0, str(Path(__file__).parent))  # published
logging.disable_progress_bar()
torch.set_num_threads(1)
cases = volume_cases(2)
