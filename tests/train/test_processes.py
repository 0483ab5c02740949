import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

PROGRAM = Path(__file__).with_name("stage_program.py")
TOLERANCE = 1e-5  # of a weight, after three updates: the order of sums differs between one process and two


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        "grpo",
        "grpo-dead",
        "grpo-dead-sharded",
        "sft",
        pytest.param(
            "sft-sharded",
            marks=pytest.mark.xfail(
                strict=True, raises=AssertionError, reason="weights differ by 4e-3; the cause is not known"
            ),
        ),
    ],
)
def test_two_processes_train_as_one_does(kind, language_folder, tmp_path):
    chosen = {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true", "PYTHONWARNINGS": "ignore"}
    environment = {**os.environ, **chosen}
    result = {}
    for count in (1, 2):
        folder = tmp_path / str(count)
        # accelerate's own launcher starts a single process on a CPU machine without MPI
        launch = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc_per_node",
            str(count),
        ]
        program = kind if count > 1 else kind.removesuffix("-sharded")
        done = subprocess.run(
            [*launch, PROGRAM, program, language_folder, folder, "3", "fresh"],
            capture_output=True, text=True, env=environment, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        result[count] = load_file(folder / "model.safetensors")
        ranks = {line.split()[1] for line in done.stdout.splitlines() if line.startswith("rank")}
        assert ranks == {str(rank) for rank in range(count)}
        groups = [line.split() for line in done.stdout.splitlines() if line.startswith("groups")]
        assert groups == ([["groups", str(step), "4"] for step in (1, 2, 3)] if "grpo" in kind else [])
    for name, weight in result[1].items():
        torch.testing.assert_close(result[2][name], weight, rtol=0, atol=TOLERANCE)
