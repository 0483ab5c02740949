"""What is carried to an offline GPU machine: what is asked for and not there, in no case torch."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement
from packaging.version import Version

SCRIPT = "gpu_carry"
ROOT = Path(__file__).parents[2]


def test_what_is_missing_or_too_old_is_taken_and_torch_is_not(script):
    machine = script.Machine("3.12", {"there": Version("2.0"), "old": Version("1.0"), "unsaid": None})
    needs = {
        "there": [Requirement("there>=1")],
        "old": [Requirement("old>=1"), Requirement("old>=1.5")],
        "unsaid": [Requirement("unsaid>=9")],
        "missing": [Requirement("missing")],
        "torch": [Requirement("torch>=2.11")],
        "nvidia-cublas": [Requirement("nvidia-cublas")],
    }
    assert dict(script.lacking(needs, machine)) == {
        "missing": "is not there",
        "old": "1.0 is there, but old>=1.5 is asked for",
    }


def test_needs_are_followed_to_their_end_for_the_machines_python(script):
    needs = script.wanted(["evidcore"], "3.12")
    assert {"trl", "transformers", "pydantic-core", "multiprocess"} <= needs.keys()
    assert any(str(asked.specifier) for asked in needs["transformers"])
    assert "pytest" not in needs  # an extra of ours that nobody asked for


def test_a_machine_with_too_old_a_torch_is_refused(script):
    needs = {"torch": [Requirement("torch>=2.11")]}
    with pytest.raises(SystemExit, match=r"the machine has torch 2.4, and >=2.11 is needed"):
        script.check_torch(needs, script.Machine("3.12", {"torch": Version("2.4")}))
    script.check_torch(needs, script.Machine("3.12", {"torch": Version("2.11.0+cu130")}))


def test_a_list_without_a_fitting_python_is_refused(script, tmp_path):
    file = tmp_path / "machine.txt"
    file.write_text("python==3.10\ntorch==2.11.0\n")
    with pytest.raises(SystemExit, match=r"has no line python==3.11 or later, got 3.10"):
        script.Machine.read(file)
    file.write_text("# a comment\nPython==3.12\nTyping_Extensions  # as pip says it\n")
    assert script.Machine.read(file) == script.Machine("3.12", {"typing-extensions": None})


def gpu_script(tmp_path, *parts, python=sys.executable):
    words = [ROOT / "benchmarks" / "gpu.sh", tmp_path, tmp_path / "out", *parts]
    return subprocess.run(words, env={**os.environ, "PYTHON": str(python)}, capture_output=True, text=True)


def test_a_part_that_is_none_is_refused_before_anything(tmp_path):
    done = gpu_script(tmp_path, "steps", "enginee")
    said = "no part 'enginee'. There are steps, tokens, engine, segment, recipes, vlm and frozen.\n"
    assert (done.returncode, done.stderr) == (2, said)


def test_each_part_keeps_what_it_says_and_one_that_fails_does_not_stop_the_others(tmp_path):
    (tmp_path / "a-1-py3-none-any.whl").touch()
    python = tmp_path / "python"  # says what it is asked, and fails in one part
    python.write_text(
        "#!/bin/sh\n"
        'case "$*" in *pip*|-c*) exit 0;; *grpo_step*) echo bad; echo "{"; exit 7;; *) echo "ran $*";; esac\n'
    )
    python.chmod(0o755)
    done = gpu_script(tmp_path, python=python)
    said = {path.name: path.read_text() for path in (tmp_path / "out").iterdir()}
    assert (said["engine.txt"], said["grpo_step_gpu.json"]) == ("bad\n{\n", "{\n")
    for name, script in {
        "steps": "gpu_step.py --out", "segment": "medsam2_parity.py --device cuda", "vlm": "gpu_vlm.py\n",
        "recipes": "short_runs.py --out", "tokens": "step_graph.py --paper\n",
        "frozen": "gpu_vlm.py --bfloat16\n",
    }.items():  # fmt: skip
        assert said[f"{name}.txt"].startswith(f"ran benchmarks/{script}")
    assert done.returncode == 1
    assert "engine: ended with status 7" in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_the_script_says_so_and_exits_3(tmp_path):
    done = gpu_script(tmp_path)
    assert done.returncode == 3
    assert f"no CUDA device that the torch of {sys.executable} sees" in done.stderr
    assert not (tmp_path / "out").exists()
