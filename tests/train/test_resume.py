from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

PROGRAM = Path(__file__).with_name("stage_program.py")


def finish(process):
    steps = [line for line in process.lines() if line.startswith("step")]
    assert process.returncode == 0, process.communicate()[1]
    return steps


@pytest.mark.slow
def test_a_checkpoint_that_was_cut_short_is_not_resumed_from(warm, language_folder, tmp_path):
    def start(name, *, resume="fresh"):
        return warm(PROGRAM, "sft", language_folder, tmp_path / name, 5, resume, folder=tmp_path)

    finish(start("whole"))
    process = start("cut")
    for line in process.lines():
        if line.startswith("step 5"):
            process.kill()
    (tmp_path / "cut" / "steps" / "checkpoint-4" / "model.safetensors").write_bytes(b"cut")
    rest = finish(start("cut", resume="resume"))
    assert [line.split()[1] for line in rest] == ["3", "4", "5"]
    ours, theirs = (load_file(tmp_path / name / "model.safetensors") for name in ("cut", "whole"))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
