"""Questions from masks of real CT, trained on and audited; tests of own scans go by a table of questions."""

import csv
import json
from pathlib import Path

import nibabel
import numpy as np
import pytest
from evidcore_testing.fixtures import evid as evid

from evidcore.runs.folder import read_lines


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
def test_questions_from_masks_of_real_ct_train_and_are_answered_by_held_out_patients(
    evid, real_data, tmp_path
):
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
    changes = [word for text in settings for word in ("--set", text)]
    evid("run", recipe, "--out", tmp_path / "runs", "--json", *changes)
    run = next((tmp_path / "runs" / "real_ct").glob("2*"))
    assert json.loads((run / "STATUS").read_text(encoding="utf-8"))["state"] == "finished"
    trained = [line for path in run.rglob("rollouts/**/*.jsonl") for line in read_lines(path)]
    answered = [line for path in run.rglob("answers/*.jsonl") for line in read_lines(path)]
    assert {line["patient"] for line in answered} == {scan.parent.name for scan in scans[3:]}
    of_the_policy = [line for line in answered if line["condition"] != "blind-rule"]  # a rule's line is short
    assert {line["finding"] for line in of_the_policy} == {"side", "larger"}
    assert trained
    assert "too few patients" in (run / "page" / "index.html").read_text(encoding="utf-8")
