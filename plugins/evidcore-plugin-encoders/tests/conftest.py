import torch
from evidcore_testing.fixtures import volume_cases
from transformers.utils import logging

logging.disable_progress_bar()
torch.set_num_threads(1)
cases = volume_cases(2)
