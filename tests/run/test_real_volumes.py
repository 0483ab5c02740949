"""Real CT through `folder`, cache, encoder, SFT, GRPO, audit and page. Plumbing: the labels are made up."""

import csv
import json

import pytest
from click.testing import CliRunner

from evidcore.cli import main

FINDINGS = ("emphysema", "lung nodule", "atelectasis", "cardiomegaly", "pleural effusion")
RECIPE = """
schema = 1
name = "real"
seed = 3
[dataset.ct]
use = "folder"
path = "."
findings = ["emphysema", "lung nodule", "atelectasis", "cardiomegaly", "pleural effusion"]
[model]
language = { config = "tiny" }
encoder = { use = "vit3d" }
bridge = { use = "projection" }
view = { use = "volume" }
[[stage]]
kind = "sft"
train = ["bridge", "language"]
data = [{ dataset = "ct", task = "report" }]
steps = 2
rows_per_step = 4
learning_rate = 1e-3
[[stage]]
kind = "grpo"
train = ["bridge", "language"]
data = [{ dataset = "ct", task = "choice" }]
steps = 2
prompts_per_step = 2
answers_per_prompt = 4
learning_rate = 1e-4
max_new_tokens = 40
trl = { loss_type = "grpo", beta = 0.04, epsilon = 0.2 }
[[stage.reward]]
use = "format"
[[stage.reward]]
use = "choice-accuracy"
[[stage]]
kind = "audit"
data = [{ dataset = "ct", task = "choice", split = "test" }]
max_new_tokens = 40
"""


@pytest.mark.slow
def test_real_volumes_go_through_every_stage_and_onto_the_page(real_data, tmp_path):
    with (tmp_path / "cases.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["id", "volume", "patient", "split", "report", *FINDINGS])
        scans = sorted((real_data / "ibsi_validation").glob("STS_*/CT_image.nii.gz"))[:8]
        for place, scan in enumerate(scans):
            states = [(place + number) % 2 for number in range(len(FINDINGS))]
            text = " ".join(
                f"{'There is' if on else 'No'} {name}." for name, on in zip(FINDINGS, states, strict=True)
            )
            split = "train" if place < 4 else "test"
            table.writerow([scan.parent.name, scan, scan.parent.name, split, text, *states])
    recipe = tmp_path / "real.toml"
    recipe.write_text(RECIPE, encoding="utf-8")
    done = CliRunner().invoke(main, ["run", str(recipe), "--out", str(tmp_path / "runs"), "--json"])
    assert done.exit_code == 0, done.output
    run = next((tmp_path / "runs" / "real").glob("2*"))
    assert json.loads((run / "STATUS").read_text(encoding="utf-8"))["state"] == "finished"
    page = (run / "page" / "index.html").read_text(encoding="utf-8")
    assert "data:image/png;base64," in page
    assert "too few patients" in page
    assert "There is emphysema" not in page  # reports of real patients stay off the page
