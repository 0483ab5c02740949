from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

PROGRAM = Path(__file__).with_name("stage_program.py")
TOLERANCE = 1e-5  # of a weight, after three updates: the order of sums differs between one process and two


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["grpo", "grpo-dead", "grpo-dead-sharded", "sft", "sft-sharded"])
def test_two_processes_train_as_one_does(kind, language_folder, tmp_path, torchrun):
    result = {}
    for count in (1, 2):
        folder = tmp_path / str(count)
        program = kind if count > 1 else kind.removesuffix("-sharded")
        lines = torchrun(count, PROGRAM, program, language_folder, folder)
        result[count] = load_file(folder / "model.safetensors")
        assert {line for line in lines if line.startswith("rank")} == {
            f"rank {rank}" for rank in range(count)
        }
        groups = [line for line in lines if line.startswith("groups")]
        assert groups == ([f"groups {step} 4" for step in (1, 2, 3)] if "grpo" in kind else [])
    for name, weight in result[1].items():
        torch.testing.assert_close(result[2][name], weight, rtol=0, atol=TOLERANCE)
