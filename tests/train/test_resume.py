import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

PROGRAM = Path(__file__).with_name("stage_program.py")


def start(kind, language, folder, *, steps=5, resume="fresh"):
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", PROGRAM, kind, language, folder, str(steps), resume],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def finish(process):
    with process:
        lines = [line.strip() for line in process.stdout]
    assert process.returncode == 0
    return [line for line in lines if line.startswith("step")]


def weights(folder):
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize("kind", ["grpo", "sft"])
def test_a_killed_and_resumed_stage_gives_the_bits_of_an_uninterrupted_one(kind, language_folder, tmp_path):
    whole = finish(start(kind, language_folder, tmp_path / "whole"))
    with start(kind, language_folder, tmp_path / "killed") as process:
        for line in process.stdout:
            if line.startswith("step 4 "):  # after the checkpoint at step 2, before or in that at step 4
                os.kill(process.pid, signal.SIGKILL)
                break
    assert process.returncode == -signal.SIGKILL
    assert not (tmp_path / "killed" / "model.safetensors").exists()
    rest = finish(start(kind, language_folder, tmp_path / "killed", resume="resume"))
    assert rest == whole[-len(rest) :]
    assert 0 < len(rest) < 5
    ours, theirs = weights(tmp_path / "killed"), weights(tmp_path / "whole")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_checkpoint_that_was_cut_short_is_not_resumed_from(language_folder, tmp_path):
    finish(start("sft", language_folder, tmp_path / "whole"))
    with start("sft", language_folder, tmp_path / "cut", steps=5) as process:
        for line in process.stdout:
            if line.startswith("step 5"):
                process.kill()
                break
    (tmp_path / "cut" / "steps" / "checkpoint-4" / "complete").unlink(missing_ok=True)
    (tmp_path / "cut" / "steps" / "checkpoint-4" / "model.safetensors").write_bytes(b"cut")
    rest = finish(start("sft", language_folder, tmp_path / "cut", resume="resume"))
    assert [line.split()[1] for line in rest] == ["3", "4", "5"]
    ours, theirs = weights(tmp_path / "cut"), weights(tmp_path / "whole")
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
