from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

PROGRAM = Path(__file__).with_name("stage_program.py")


@pytest.fixture
def start(warm, language_folder, tmp_path):
    def begin(kind, name, *, resume="fresh"):
        return warm(PROGRAM, kind, language_folder, tmp_path / name, 5, resume, folder=tmp_path)

    return begin


def finish(process):
    steps = [line for line in process.lines() if line.startswith("step")]
    assert process.returncode == 0, process.communicate()[1]
    return steps


def weights(folder):
    return load_file(folder / "model.safetensors")


@pytest.mark.slow
def test_a_checkpoint_that_was_cut_short_is_not_resumed_from(start, tmp_path):
    finish(start("sft", "whole"))
    process = start("sft", "cut")
    for line in process.lines():
        if line.startswith("step 5"):
            process.kill()
    (tmp_path / "cut" / "steps" / "checkpoint-4" / "complete").unlink(missing_ok=True)
    (tmp_path / "cut" / "steps" / "checkpoint-4" / "model.safetensors").write_bytes(b"cut")
    rest = finish(start("sft", "cut", resume="resume"))
    assert [line.split()[1] for line in rest] == ["3", "4", "5"]
    ours, theirs = weights(tmp_path / "cut"), weights(tmp_path / "whole")
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
