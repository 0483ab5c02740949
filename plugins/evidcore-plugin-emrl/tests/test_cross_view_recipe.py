"""A recipe in small with cross-view: a reader is fitted on patients of its own, and its eyes teach a policy."""

import json
from statistics import fmean

import pytest
from disc_cases import disc_case

from evidcore.contracts import Dataset
from evidcore.recipe import load
from evidcore.run import run, start
from evidcore.run.dry_run import dry_run

PATIENTS = {"policy": range(100, 112), "readers": range(0, 40)}

RECIPE = """\
schema = 1
name = "cross-view"
seed = 17

[dataset.policy]
use = "discs"
whose = "policy"

[dataset.readers]
use = "discs"
whose = "readers"

[service.judge]
kind = "reader"
use = "slice-reader"
size_yx = [32, 48]
channels = [12, 24]
windows = [[-50.0, 150.0]]

[model]
language = { use = "tiny", width = 32, layers = 1 }
view = { use = "slices", slices = 6 }
encoder = { use = "vit3d", size_zyx = [6, 32, 48], patch_zyx = [1, 8, 8], width = 24, windows = [[-50.0, 150.0]] }
bridge = { use = "projection" }

[[stage]]
kind = "fit"
component = "service.judge"
data = [{ dataset = "readers" }]
options = { steps = 120 }

[[stage]]
kind = "sft"
train = ["encoder", "bridge", "language"]
data = [{ dataset = "policy", task = "report-evidence" }]
steps = SFT_STEPS
rows_per_step = 4
learning_rate = 1e-2

[[stage]]
kind = "grpo"
train = ["bridge", "language"]
data = [{ dataset = "policy", task = "report-evidence" }]
steps = GRPO_STEPS
prompts_per_step = 4
answers_per_prompt = 8
learning_rate = 3e-3
max_new_tokens = 48
"""
CROSS_VIEW = """
[[stage.reward]]
use = "cross-view"
reader = "judge"
"""


class Discs(Dataset):
    """Patients with discs, drawn once."""

    def __init__(self, recipe_folder, *, whose: str):
        self.folder, self.patients = recipe_folder / whose, PATIENTS[whose]

    findings = ("cyst", "stone")

    def cases(self, split):
        numbers = {"train": self.patients, "validation": range(900, 904)}.get(split, ())
        return [disc_case(self.folder, number) for number in numbers]

    def fingerprint(self):
        return "discs"


@pytest.fixture
def recipe(tmp_path, offered):
    offered("evid-discs", "[evidcore.dataset]\ndiscs = evid_discs:It\n", It=Discs)

    def write(*rewards, sft=60, grpo=40):
        path = tmp_path / "cross_view.toml"
        text = RECIPE.replace("SFT_STEPS", str(sft)).replace("GRPO_STEPS", str(grpo))
        path.write_text(text + "".join(rewards), encoding="utf-8")
        return load(path)

    return write


def test_it_trains(recipe, tmp_path):
    import time
    t = time.time()
    folder = start(recipe(CROSS_VIEW, sft=160, grpo=30), tmp_path / "runs")
    run(folder)
    print(time.time() - t)
    lines = (folder.path / "rollouts" / "03-grpo.jsonl").read_text(encoding="utf-8").strip().split("\n")
    import collections
    by = collections.defaultdict(list)
    for line in map(json.loads, lines):
        for one in line["rollouts"]:
            v = one["rewards"]["cross-view"]["value"]
            if v is not None: by[line.get("step")].append(v)
    print({k: round(fmean(v), 3) for k, v in by.items()})
    for r in json.loads(lines[0])["rollouts"] + json.loads(lines[-1])["rollouts"]: print(r["text"], r["rewards"])
    print((folder.path).exists(), list(folder.path.iterdir()))
    assert 0
