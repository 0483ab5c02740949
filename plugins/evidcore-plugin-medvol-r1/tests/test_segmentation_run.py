"""A run that learns to answer with a slice and boxes, is scored by masks, and is scored again by others."""

import csv
import json

import pytest
from evidcore_plugin_pages.document import write_page
from evidcore_testing import volume_case
from evidcore_testing.recipes import recipe_text
from filled_boxes import Nothing

from evidcore.api import Segmenter
from evidcore.cli.summary import summary
from evidcore.data import read_geometry
from evidcore.recipe import load
from evidcore.runs.begin import run, start

TASK = {"use": "reasoning-segmentation", "ask": "masks"}
TRAINING = [{"dataset": "chest", "task": "reasoning"}]
TEST = [{**TRAINING[0], "split": "test"}]
RECIPE = recipe_text(
    {"kind": "sft", "train": ["encoder", "bridge", "language"], "steps": 30, "rows_per_step": 4,
     "learning_rate": 1e-2, "data": [{"dataset": "chest", "task": "cold-start"}, *TRAINING]},
    {"kind": "grpo", "train": ["bridge", "language"], "data": TRAINING, "steps": 1, "prompts_per_step": 2,
     "answers_per_prompt": 2, "learning_rate": 1e-3, "max_new_tokens": 64,
     "reward": [{"use": "evidence-format", "name": "format"}, {"use": "key-slice"}, {"use": "box-overlap"},
                {"use": "volume-consistency", "segmenter": "grower"}]},
    {"kind": "evaluate", "data": [{**TEST[0], "task": "cold-start"}, *TEST], "max_new_tokens": 64,
     "segmenter": {"use": "region-growing"}},
    {"kind": "audit", "data": TEST, "max_new_tokens": 64,
     "conditions": [{"use": "blank"}, {"use": "other-patient", "repeats": 1}]},
    name="boxes",
    dataset={"chest": {"use": "folder", "path": "data"}},
    task={"cold-start": {**TASK, "think": False}, "reasoning": TASK},
    service={"grower": {"use": "region-growing"}},
    model={"view": {"use": "slices", "slices": 4},
           "encoder": {"use": "vit3d", "size_zyx": [4, 16, 16], "patch_zyx": [1, 8, 8], "width": 24}},
)  # fmt: skip


class Nowhere(Segmenter):
    """Finds nothing, so that every DSC is 0."""

    def session(self, volume):
        return Nothing(read_geometry(volume).shape_zyx, [])


@pytest.fixture
def root(tmp_path, offered):
    offered("evid-nowhere", "[evidcore.segmenter]\nnowhere = evid_nowhere:It\n", It=Nowhere)
    (tmp_path / "data").mkdir()
    with (tmp_path / "data" / "cases.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["id", "volume", "patient", "split", "report", "masks"])
        for number, split in enumerate(["train"] * 4 + ["validation"] + ["test"] * 2):
            case = volume_case(tmp_path / "data", number)
            masks = ";".join(f"{name}=case-{number}.npz#{name}" for name in case.masks)
            table.writerow([case.id, f"case-{number}.nii.gz", case.patient, split, case.report.text, masks])
    (tmp_path / "boxes.toml").write_text(RECIPE, encoding="utf-8")
    return tmp_path


def result_of(folder, stage):
    return json.loads((folder.path / "results" / f"{stage}.json").read_text(encoding="utf-8"))


def rows_of(folder):
    return {(row["name"], row["metric"]): row for row in result_of(folder, "03-evaluate")["rows"]}


@pytest.mark.slow
def test_a_run_is_scored_by_its_masks_and_scored_again_by_others_without_training(root):
    first = start(load(root / "boxes.toml"), root / "runs")
    run(first)
    rows = rows_of(first)
    for task in ("cold-start", "reasoning"):
        for metric in ("format_rate", "dsc", "iou", "iou_from_dsc", "oracle_dsc", "unparsable_rate"):
            assert rows[task, metric]["value"] is not None, metric
        assert rows[task, "oracle_dsc"]["value"] > 0.1
        assert "too few patients (2 of at least 20)" in rows[task, "dsc"]["note"]
    assert {"dsc/lung nodule", "dsc/pleural effusion"} <= {metric for _, metric in rows}
    audit = result_of(first, "04-audit")
    audited = {(row["name"], row["metric"]): row for row in audit["rows"]}
    own = audited["own volumes", "dsc"]
    assert own["value"] == rows["reasoning", "dsc"]["value"]
    margin = own["value"] - audited["another patient's volumes", "dsc"]["value"]
    assert audited["reasoning", "grounding_margin"]["value"] == pytest.approx(margin)
    assert audited["reasoning", "blind_dsc"]["value"] is not None
    assert "points of DSC" in audit["verdict"]["reasoning"]
    lines = (first.path / "rollouts" / "02-grpo.jsonl").read_text(encoding="utf-8").splitlines()
    judged = [set(item["rewards"]) for line in lines for item in json.loads(line)["rollouts"]]
    assert judged == [{"format", "key-slice", "box-overlap", "volume-consistency"}] * 4

    swapped = load(root / "boxes.toml", ['stage.evaluate.segmenter={use="nowhere"}'])
    second = start(swapped, root / "runs")
    run(second)
    again = rows_of(second)
    assert again["reasoning", "oracle_dsc"]["value"] == 0.0
    assert again["reasoning", "format_rate"]["value"] == rows["reasoning", "format_rate"]["value"]
    for stage, is_same in (("01-sft", True), ("02-grpo", True), ("03-evaluate", False)):
        keys = {result_of(each, stage)["inputs"] for each in (first, second)}
        assert (len(keys) == 1) == is_same, stage

    said = "\n".join(summary(first)["lines"])
    page = write_page(first.path).read_text(encoding="utf-8")
    for metric in ("dsc", "iou from dsc", "oracle dsc", "unparsable rate", "box iou", "grounding margin"):
        assert metric in said
        assert metric in page
