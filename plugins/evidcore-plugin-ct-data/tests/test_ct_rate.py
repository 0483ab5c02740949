"""CT-RATE in miniature: both trees, tables with their quirks, splits, questions."""

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest
from evidcore_plugin_ct_data.ct_rate import stored_grid
from evidcore_plugin_ct_data.miniatures.chest import CT_RATE
from evidcore_plugin_ct_data.miniatures.voxels import SPACING_MM_ZYX, volume
from evidcore_plugin_reports.findings import CT_RATE_FINDINGS

from evidcore.api import read

TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

NUMBERS = {name: place for place, name in enumerate([*CT_RATE["train"], *CT_RATE["valid"]], 1)}
LABELS = "dataset/multi_abnormality_labels/{}_predicted_labels.csv"
METADATA = "dataset/metadata/train_metadata.csv"
REPORTS = "dataset/radiology_text_reports/train_reports.csv"


@pytest.fixture
def chest(home):
    return home("ct-rate")


def test_the_splits_are_disjoint_by_patient_and_cover_the_set(chest):
    split = {name: set(chest.cases(name, validation_share=0.4)) for name in ("train", "validation", "test")}
    assert split["test"] == set(CT_RATE["valid"])
    assert split["train"] | split["validation"] == set(CT_RATE["train"])
    patients = [{name.rsplit("_", 2)[0] for name in split[part]} for part in ("train", "validation")]
    assert patients[0] & patients[1] == set()
    assert len(split["validation"]) > 2


def test_a_patient_stays_in_validation_when_its_share_grows(chest):
    few, many = (set(chest.cases("validation", validation_share=share)) for share in (0.2, 0.6))
    assert few < many


@pytest.mark.parametrize(
    ("tree", "told", "folder"),
    [
        ("fixed", (None, None, None), "/valid_fixed/"),  # read as it is
        ("plain", ((1.0, -1024.0), SPACING_MM_ZYX, "LPS"), "/valid/"),  # from the metadata
    ],
)
def test_both_trees_give_the_same_values_spacing_and_axes(chest, tree, told, folder):
    for name, case in chest.cases("test", tree=tree).items():
        (ref,) = case.volumes
        assert (ref.rescale, ref.spacing_mm_zyx, ref.axes) == told
        assert folder in ref.path
        held = read(ref)
        np.testing.assert_array_equal(held.array, volume(NUMBERS[name]))
        assert held.spacing_mm_zyx == pytest.approx(SPACING_MM_ZYX)


def test_spacings_follow_the_axes_of_a_turned_slice(chest):
    chest.edit(METADATA, '"[0.75, 0.75]",2.5', '"[0.5, 0.75]",2.5')
    chest.edit(METADATA, '"[1.0, 0.0, 0.0, 0.0, 1.0, 0.0]"', '"[0.0, -1.0, 0.0, 1.0, 0.0, 0.0]"')
    case = chest.cases("train", tree="plain", ids=("train_1_a_1",), validation_share=0.0)["train_1_a_1"]
    assert case.volumes[0].axes == "ALS"
    assert case.volumes[0].spacing_mm_zyx == (2.5, 0.5, 0.75)
    held = read(case.volumes[0])
    assert held.spacing_mm_zyx == (2.5, 0.5, 0.75)
    # stored with columns to the left and rows to posterior, said to run to anterior and left
    np.testing.assert_array_equal(held.array, volume(1).transpose(0, 2, 1)[:, ::-1])


@pytest.mark.parametrize(
    ("orientation", "axes", "spacing_mm_zyx", "degrees"),
    [
        ((1, 0, 0, 0, 1, 0), "LPS", (3, 2, 1), 0.0), ((-1, 0, 0, 0, -1, 0), "RAS", (3, 2, 1), 0.0),
        ((0, 1, 0, 0, 0, -1), "PIR", (2, 1, 3), 0.0), ((1, 0, 0, 0, 0.866025, -0.5), "LPS", (3, 2, 1), 30.0),
    ],
)  # fmt: skip
def test_axes_are_worked_out_from_the_orientation(orientation, axes, spacing_mm_zyx, degrees):
    *grid, lean = stored_grid(orientation, (1, 2, 3))
    assert grid == [axes, spacing_mm_zyx]
    assert lean == pytest.approx(degrees, abs=1e-3)


def test_a_tilted_scan_of_the_plain_tree_is_unusable_by_name(chest):
    chest.edit(METADATA, "[1.0, 0.0, 0.0, 0.0, 1.0, 0.0]", "[1.0, 0.0, 0.0, 0.0, 0.966, 0.259]")
    told = chest.refusal("train", tree="plain", validation_share=0.0)
    assert "volume 'train_1_a_1' leans by 15.0°" in told
    assert "Read tree 'fixed'." in told
    kept = chest.cases("train", tree="plain", validation_share=0.0, missing="skip")
    assert set(CT_RATE["train"]) - set(kept) == {"train_1_a_1"}


def test_labels_become_findings_in_their_order(chest):
    case = chest.cases("test")["valid_1_a_1"]
    assert tuple(item.name for item in case.findings) == CT_RATE_FINDINGS
    number = NUMBERS["valid_1_a_1"]
    assert list(case.present()) == [name for i, name in enumerate(CT_RATE_FINDINGS, number) if i % 5 == 0]


def test_sections_that_were_not_given_are_empty(chest):
    cases = chest.every()
    plain = cases["train_1_a_1"]
    assert plain.report.text == "Generated findings, number 1."
    assert plain.notes == {"impression": "Generated impression, number 1.", "scan": plain.id[:-2]}
    no_findings = cases["train_4_a_1"]
    assert no_findings.report.text == "Generated impression, number 4."
    assert no_findings.notes == {"scan": no_findings.id[:-2]}
    assert cases["train_5_a_1"].notes == {"scan": "train_5_a"}
    chest.edit(REPORTS, '"Generated findings, number 1."', "Not given.")
    chest.edit(REPORTS, '"Generated impression, number 1."', "Not given.")
    assert chest.every()["train_1_a_1"].report is None


def test_one_reconstruction_a_scan(chest):
    assert set(chest.cases("test", reconstructions="first")) == {"valid_1_a_1", "valid_2_a_1"}


def test_multiple_choice_questions_come_with_their_case_and_others_do_not(chest):
    case = chest.cases("test", questions=("vqa/valid_vqa.json",))["valid_2_a_1"]
    (asked,) = case.questions
    assert (asked.text, asked.answer) == ("Which of these is generated?", 1)
    assert asked.options == ("Nodule", "Voxels", "Effusion", "Hernia")


def test_rows_as_med3d_r1_released_them_are_read_too(chest):
    options = {"A": "Nodule", "B": "Cyst", "C": "Hernia", "D": "No"}
    text = "Which is there? " + " ".join(f"{letter}) {name}" for letter, name in options.items())
    row = {"VolumeName": "valid_2_a_1.nii.gz", "question": text, "options": options, "answer": "C"}
    (chest.set / "dataset" / "mmvqa.json").write_text(json.dumps([row]))
    (asked,) = chest.cases("test", questions=("mmvqa.json",))["valid_2_a_1"].questions
    assert (asked.text, asked.options[asked.answer]) == ("Which is there?", "Hernia")


def test_a_question_whose_answer_is_no_option_is_named(chest):
    chest.edit("dataset/vqa/valid_vqa.json", "(b) Voxels", "(e) Voxels")  # the question, of the first entry
    chest.edit("dataset/vqa/valid_vqa.json", '"(b) Voxels"', '"(f) Voxels"')
    told = chest.refusal("test", questions=("vqa/valid_vqa.json",))
    assert "valid_vqa.json: entry 0, volume 'valid_1_a_1': question '0-0'" in told


def test_a_missing_volume_stops_or_is_left_out_and_counted(chest, caplog):
    file = chest.set / "dataset/valid_fixed/valid_1/valid_1_a/valid_1_a_2.nii.gz"
    file.unlink()
    told = chest.refusal("test")
    assert f"{file}: there is no such file. It comes from https://huggingface.co/datasets/ibrahimha" in told
    assert "case 'valid_1_a_2'" in told
    dataset = chest.dataset(missing="skip")
    assert [case.id for case in dataset.cases("test")] == ["valid_1_a_1", "valid_2_a_1"]
    assert list(dataset.left_out["test"]) == ["valid_1_a_2"]
    assert [case.id for case in dataset.listed("test")] == ["valid_1_a_1", "valid_1_a_2", "valid_2_a_1"]
    assert "case 'valid_1_a_2' is left out" in caplog.text


@pytest.mark.parametrize(("file", "old", "new", "message"), TABLE["cells"])
def test_a_bad_cell_is_named_with_file_volume_value_and_remedy(chest, file, old, new, message):
    chest.edit(f"dataset/{file}", old, new)
    told = chest.refusal("test", tree="plain")
    assert message in told
    assert file in told
    assert told.rstrip().endswith(("again.", "publisher.", "(case 'valid_1_a_1')"))


def test_a_missing_table_is_named(chest):
    (chest.set / LABELS.format("valid")).unlink()
    assert "valid_predicted_labels.csv: there is no such file. Check path" in chest.refusal("test")


def test_without_a_place_the_options_are_named(chest):
    told = chest.refusal("test", path=...)
    assert "give `path`, a folder that holds it, or `revision`, a commit of https://huggingface.co/" in told
