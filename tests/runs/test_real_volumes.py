"""Real CT through `folder`, cache, encoder, SFT, GRPO, audit and page. Plumbing: the labels are made up."""

import csv
import json
from pathlib import Path

import nibabel
import numpy as np
import pytest
from click.testing import CliRunner
from evidcore_plugin_tables.folder import Folder
from evidcore_plugin_tables.mask_questions import MaskQuestions
from evidcore_testing.recipes import recipe_text

from evidcore.cli import main

FINDINGS = ("emphysema", "lung nodule", "atelectasis", "cardiomegaly", "pleural effusion")
ASKED = [{"dataset": "ct", "task": "choice"}]
BOTH = {"train": ["bridge", "language"]}
RECIPE = recipe_text(
    {"kind": "sft", **BOTH, "data": [{"dataset": "ct", "task": "report"}], "steps": 2, "rows_per_step": 4,
     "learning_rate": 1e-3},
    {"kind": "grpo", **BOTH, "data": ASKED, "steps": 2, "prompts_per_step": 2, "answers_per_prompt": 4,
     "learning_rate": 1e-4, "max_new_tokens": 40,
     "trl": {"loss_type": "grpo", "beta": 0.04, "epsilon": 0.2},
     "reward": [{"use": "format"}, {"use": "choice-accuracy"}]},
    {"kind": "audit", "data": [{**ASKED[0], "split": "test"}], "max_new_tokens": 40},
    name="real",
    dataset={"ct": {"use": "folder", "path": ".", "findings": FINDINGS}},
    model={"language": {"use": "tiny"}, "encoder": {"use": "vit3d"}},
)  # fmt: skip


@pytest.mark.slow
def test_real_volumes_go_through_every_stage_and_onto_the_page(real_data, tmp_path):
    with (tmp_path / "cases.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["id", "volume", "patient", "split", "report", *FINDINGS])
        scans = sorted((real_data / "ibsi_validation").glob("STS_*/CT_image.nii.gz"))[:8]
        for index, scan in enumerate(scans):
            states = [(index + number) % 2 for number in range(len(FINDINGS))]
            text = " ".join(
                f"{'There is' if on else 'No'} {name}." for name, on in zip(FINDINGS, states, strict=True)
            )
            split = "train" if index < 4 else "test"
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


def label_map(scan, mask, path):
    """Write tumour, bone and fat of a sarcoma patient as labels 1, 2 and 3 on the scan's grid."""
    image = nibabel.load(scan)
    hu = image.get_fdata(dtype=np.float32)
    labels = np.zeros(hu.shape, np.uint8)
    labels[hu > 250] = 2
    labels[(hu > -150) & (hu < -50)] = 3
    labels[np.asarray(nibabel.load(mask).dataobj) > 0] = 1
    nibabel.save(nibabel.Nifti1Image(labels, image.affine), path)


@pytest.mark.slow
def test_questions_from_masks_of_real_ct_train_and_are_answered_by_held_out_patients(real_data, tmp_path):
    organs = real_data / "totalsegmentator" / "example_seg.nii.gz"
    # the last two are not in it
    named = {"spleen": 1, "liver": 5, "stomach": 6, "esophagus": 15, "trachea": 16}
    rows = [[
        "abdomen", real_data / "totalsegmentator" / "example_ct_sm.nii.gz", "abdomen", "train",
        ";".join(f"{name}={organs}#{label}" for name, label in named.items()),
    ]]  # fmt: skip
    scans = sorted((real_data / "ibsi_validation").glob("STS_*/CT_image.nii.gz"))[:6]
    for index, scan in enumerate(scans):
        patient = scan.parent.name
        labels = tmp_path / f"{patient}.nii.gz"
        label_map(scan, scan.with_name("CT_mask.nii.gz"), labels)
        masks = f"tumour={labels}#1;bone={labels}#2;fat={labels}#3"
        rows.append([patient, scan, patient, "train" if index < 3 else "test", masks])
    with (tmp_path / "cases.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["id", "volume", "patient", "split", "masks"], *rows])
    recipe = Path(__file__).parents[2] / "recipes" / "real_ct.toml"
    settings = [f'dataset.ct.source.path="{tmp_path}"', 'dataset.ct.midline="grid"']
    words = ["run", str(recipe), "--out", str(tmp_path / "runs"), "--json"]
    done = CliRunner().invoke(main, words + [word for text in settings for word in ("--set", text)])
    assert done.exit_code == 0, done.output
    run = next((tmp_path / "runs" / "real_ct").glob("2*"))
    assert json.loads((run / "STATUS").read_text(encoding="utf-8"))["state"] == "finished"
    trained = [
        json.loads(line)
        for path in run.rglob("rollouts/**/*.jsonl")
        for line in path.read_text().splitlines()
    ]
    answered = [
        json.loads(line) for path in run.rglob("answers/*.jsonl") for line in path.read_text().splitlines()
    ]
    assert {line["patient"] for line in answered} == {scan.parent.name for scan in scans[3:]}
    of_the_policy = [line for line in answered if line["condition"] != "blind-rule"]  # a rule's line is short
    assert {line["finding"] for line in of_the_policy} == {"side", "larger"}
    assert trained
    assert "too few patients" in (run / "page" / "index.html").read_text(encoding="utf-8")


def test_the_answers_to_questions_from_real_masks_are_those_of_the_radiologists_masks(real_data, tmp_path):
    scan = sorted((real_data / "ibsi_validation").glob("STS_*/CT_image.nii.gz"))[0]
    labels = tmp_path / "labels.nii.gz"
    label_map(scan, scan.with_name("CT_mask.nii.gz"), labels)
    (tmp_path / "cases.csv").write_text(
        f"id,volume,patient,split,masks\na,{scan},p,test,tumour={labels}#1;bone={labels}#2;fat={labels}#3\n"
    )
    source = Folder(tmp_path, tmp_path / "cache", path=".")
    (case,) = MaskQuestions(tmp_path / "cache", source=source, midline="grid").cases("test")
    right = {(each.text, frozenset(each.options)): each.options[each.answer] for each in case.questions}
    image = nibabel.load(labels)  # x of the file grows as its affine says; NIfTI's world grows to the right
    held = np.asarray(image.dataobj)
    grows_right = image.affine[0, 0] > 0
    for label, name in enumerate(("tumour", "bone", "fat"), 1):
        off = (np.argwhere(held == label)[:, 0].mean() - (held.shape[0] - 1) / 2) * abs(image.affine[0, 0])
        words = f"On which side of the scan, as the patient has sides, is the {name}?"
        if abs(off) >= 10:
            assert right[words, frozenset(("left", "right"))] == (
                "right" if (off > 0) == grows_right else "left"
            )
        else:
            assert (words, frozenset(("left", "right"))) not in right
    counts = dict(zip(("tumour", "bone", "fat"), np.bincount(held.reshape(-1))[1:], strict=True))
    larger = {pair: name for (text, pair), name in right.items() if "volume" in text}
    assert larger
    for pair, name in larger.items():
        assert counts[name] == max(counts[each] for each in pair)
