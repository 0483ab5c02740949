"""README's commands for own scans, questions and model are run as they stand there, with a tiny model."""

import csv
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from evidcore_testing import tiny_vision_language
from evidcore_testing.data import save_nifti

from evidcore.recipe import load

README = Path(__file__).parents[2] / "README.md"
MODEL = "Qwen/Qwen2.5-VL-3B-Instruct"


def commands() -> list[list[str]]:
    """Return the commands of the section, without `evid`."""
    section = README.read_text(encoding="utf-8").partition("## My scans, my questions, my model")[2]
    block = section.partition("```console\n")[2].partition("```")[0]
    return [shlex.split(line, comments=True)[2:] for line in block.splitlines()]


def questions(folder: Path, scans: list[Path]) -> None:
    """Write two questions about each scan; the last third of them are for the test."""
    with (folder / "questions.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["scan", "patient", "split", "question", "A", "B", "C", "answer"])
        for number, scan in enumerate(scans):
            split = "train" if number < len(scans) * 2 // 3 else "test"
            for asked in ("Which part of the body is it?", "Where is the mass?"):
                options = ["left", "right", "middle"]
                table.writerow([scan, f"p{number}", split, asked, *options, "ABC"[number % 3]])


def run_trainer(folder: Path) -> None:
    """Run the commands in a folder that holds the questions, and look at what they leave."""
    model = str(tiny_vision_language(folder / "vlm", "qwen2_5_vl"))
    given = commands()
    assert [words[0] for words in given] == ["init", "data", "plan", "run"]
    assert len(given) <= 5
    said = ""
    for words in given:
        words = [model if word == MODEL else word for word in words]
        done = subprocess.run(
            [sys.executable, "-m", "evidcore", *words], cwd=folder, capture_output=True, text=True
        )
        result = done.returncode in (0, 1) if words[0] == "data" else done.returncode == 0  # faults are told
        assert result, f"{words}\n{done.stdout}\n{done.stderr}"
        said = done.stdout
    (run,) = (path for path in (folder / "runs" / "questions").iterdir() if re.match(r"\d", path.name))
    stages = {re.sub(r"^\d\d-", "", path.stem) for path in (run / "results").glob("*.json")}
    assert {"evaluate", "sft", "grpo", "audit"} <= stages
    assert (run / "page" / "index.html").stat().st_size > 10_000
    assert f"page:    runs/questions/{run.name}/page/index.html" in said
    trained = [stage for stage in load(run / "resolved.toml").stages if stage.traits.trains]
    assert sum(stage.steps for stage in trained) == 10


@pytest.mark.slow
def test_generated_scans_come_to_a_page_by_the_commands_of_readme(tmp_path):
    scans = []
    for number in range(6):
        scan = np.random.default_rng(number).normal(0, 20, (5, 32, 32)).astype(np.int16)
        scan[..., :4] = -1000
        scans.append(save_nifti(tmp_path / f"scan{number}.nii.gz", scan, (5.0, 2.0, 2.0)))
    questions(tmp_path, [path.relative_to(tmp_path) for path in scans])
    run_trainer(tmp_path)


@pytest.mark.slow
def test_real_scans_come_to_a_page_by_the_commands_of_readme(tmp_path, real_data):
    scans = sorted((real_data / "ibsi_validation").glob("STS_*/CT_image.nii.gz"))
    if not scans:
        pytest.skip(f"no CT_image.nii.gz of ibsi_validation in {real_data}")
    questions(tmp_path, scans)
    run_trainer(tmp_path)
