"""OmniMedVQA in miniature, and questions whose answers are given by text."""

import numpy as np
import pytest
from evidcore_plugin_ct_data.letters import Unanswerable, question
from evidcore_plugin_ct_data.miniatures.m3d import SETS
from PIL import Image

CHEST = "OmniMedVQA/QA_information/Open-access/Chest CT Scan.json"


@pytest.fixture
def omni(home):
    return home("omni-med-vqa")


def left_out(dataset):
    splits = ("train", "validation", "test")
    assert sum(len(list(dataset.cases(split))) for split in splits)
    return [item for split in splits for item in dataset.left_out[split].items()]


def test_a_picture_is_one_case_of_arbitrary_intensity_without_a_patient(omni):
    case = omni.every()["Images/Chest CT Scan/003.png"]
    assert case.patient is None
    (ref,) = case.volumes
    assert (ref.intensity, ref.axes, ref.spacing_mm_zyx) == ("arbitrary", None, None)
    with Image.open(ref.path) as picture:
        y, x = np.indices((6, 8))
        np.testing.assert_array_equal(np.asarray(picture), y * 20 + x * 3 + 3)


def test_an_answer_is_found_by_text_without_case_and_full_stop(omni):
    first, second = omni.every()["Images/ACRIMA/001.png"].questions
    assert first.options[first.answer] == "Fundus imaging."
    assert second.options[second.answer] == "No, It's normal."
    assert second.options == ("No, It's normal.", "Yes")  # two of the four options were empty


def test_an_entry_with_another_key_for_the_modality_is_no_other(omni):
    wanted = omni.every(modalities=("CT(Computed Tomography)",))
    assert len(wanted) == SETS["Chest CT Scan"]
    assert len(wanted["Images/Chest CT Scan/000.png"].questions) == 2


def test_sets_and_kinds_of_questions_are_chosen_by_name(omni):
    few = omni.every(sets=("ACRIMA",), question_types=("Disease Diagnosis",))
    assert [len(case.questions) for case in few.values()] == [1] * SETS["ACRIMA"]
    assert "has no set 'ACRIMMA'. Did you mean 'ACRIMA'?" in omni.refusal(sets=("ACRIMMA",))


def test_restricted_questions_are_read_on_demand_and_their_pictures_missed(omni):
    assert "Images/AIDA/000.png" not in omni.every()
    ((_, told),) = left_out(omni.dataset(access="all", missing="skip"))
    assert "Images/AIDA/000.png: there is no such file" in told


def test_a_question_without_an_answer_leaves_its_picture_out_by_name(omni):
    omni.edit(CHEST, '"gt_answer": "CT."', '"gt_answer": "PET"')
    ((picture, told),) = left_out(omni.dataset(missing="skip"))
    assert picture == "Images/Chest CT Scan/000.png"
    assert f"Scan.json: picture '{picture}': question 'Chest CT Scan_0000_0'" in told
    assert "has no option 'PET': 'CT', 'MRI', 'X-ray'" in told


def test_an_entry_that_names_no_picture_is_refused(omni):
    omni.edit(CHEST, '"image_path": "Images/Chest CT Scan/000.png"', '"image_path": ""')
    assert "Chest CT Scan.json: entry 0 must name image_path and gt_answer" in omni.refusal()


def test_a_folder_without_questions_is_named(omni):
    (omni.set / "empty").mkdir()
    told = omni.refusal(path=str(omni.set / "empty"))
    assert "QA_information: holds no Open-access folder with .json files. Unpack OmniMedVQA.zip there" in told


OPTIONS = {"A": "Nodule", "B": " cyst ", "C": "", "D": "CYST."}


def test_a_question_keeps_its_options_in_order_and_every_true_one():
    asked = question("q", " Which? ", OPTIONS, letter="b")
    assert (asked.text, asked.options) == ("Which?", ("Nodule", "cyst", "CYST."))
    assert (asked.answer, asked.true_options) == (1, (1, 2))


@pytest.mark.parametrize(
    ("options", "given", "message"),
    [
        ({"A": "Nodule", "B": ""}, {"letter": "A"}, "question 'q' has 1 options, at least 2 are needed"),
        (OPTIONS, {"letter": "C"}, "question 'q' has options A, B, D, its answer is 'C'"),
        (OPTIONS, {"answer": "hernia"}, "question 'q' has no option 'hernia': 'Nodule', 'cyst', 'CYST.'"),
        (OPTIONS, {"letter": "A", "answer": "cyst"}, "gives 'A' as .* but its answer's text 'cyst' is 'B'"),
    ],
)
def test_an_answer_that_cannot_be_told_is_refused(options, given, message):
    with pytest.raises(Unanswerable, match=message.replace("(", r"\(")):
        question("q", "Which?", options, **given)
