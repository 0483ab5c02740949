"""The M3D family in miniature: sparse masks, z-scored arrays, slices as pictures, questions, leaks."""

from pathlib import Path

import numpy as np
import pytest
from evidcore_plugin_ct_data.m3d_stacks import axes_of, same_text
from evidcore_plugin_ct_data.miniatures.m3d import grey
from evidcore_plugin_ct_data.miniatures.voxels import mask, volume

from evidcore.api import read_mask
from evidcore.data import Geometry, Volume

BOTH = {"codes": ("0004", "0012"), "axes": {"0012": "LPS"}, "validation_share": 0.0}


def like(array):
    """A volume in body axes to read masks onto."""
    geometry = Geometry(shape_zyx=array.shape, affine=np.eye(4))
    return Volume(array=array, geometry=geometry, intensity="arbitrary")


@pytest.fixture
def seg(home):
    return home("m3d-seg", **BOTH)


def test_both_layouts_of_the_segmentation_sets_are_read(seg):
    train, test = seg.cases("train"), seg.cases("test")
    assert list(train) == [f"0004/case_{n:05d}" for n in range(4)] + [f"0012/case_{n}" for n in range(4)]
    assert list(test) == ["0004/case_00004", "0012/case_4"]
    assert list(train["0004/case_00001"].masks) == ["kidney", "kidney tumor", "kidney cyst"]
    assert train["0012/case_1"].patient is None


def test_arrays_are_arbitrary_without_spacing_and_run_where_their_source_ran(seg):
    for name, axes in (("0004/case_00002", "IPL"), ("0012/case_2", "LPS")):
        (ref,) = seg.cases("train")[name].volumes
        assert (ref.intensity, ref.axes, ref.spacing_mm_zyx) == ("arbitrary", axes, (1.0, 1.0, 1.0))
        stored = np.load(ref.path)[0]
        body = stored[::-1] if axes == "IPL" else stored.transpose(2, 1, 0)
        expected = volume(2).astype(np.float32)
        np.testing.assert_allclose(body, (expected - expected.mean()) / expected.std(), rtol=1e-5)


def test_masks_lie_where_they_lie_in_the_body(seg):
    for name in ("0004/case_00003", "0012/case_3"):
        refs = seg.cases("train")[name].masks.values()
        *masks, lacking = (read_mask(ref, like=like(volume(0))) for ref in refs)
        for number, drawn in enumerate(masks, start=3):
            np.testing.assert_array_equal(drawn, mask(number))
        assert not lacking.any()  # a label that this case does not have


def test_axes_that_nobody_knows_must_be_said(seg):
    told = seg.refusal(axes={})
    assert "0012.json: the arrays of set '0012' do not say where their axes run to" in told
    assert 'axes = { 0012 = "LPS" }' in told


def test_paths_of_the_publishers_machine_are_cut_to_the_set(seg):
    seg.edit("0012/0012.json", '"0012/ct/case_0.npy"', '"/mnt/data/M3D_Seg/0012/ct/case_0.npy"')
    assert "0012/case_0" in seg.cases("train")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"2": "bladder"', '"3": "bladder"', "must count from 1 without a gap, got {'0': 'background', '1'"),
        ('"labels"', '"lables"', "must be a table with 'labels', 'train' and 'test', its labels are None"),
        ('"image": "0012/ct/case_0.npy"', '"image": ""', "entry 0 of 'train': must name an image and a"),
        ('"0012/ct/case_0.npy"', '"ct/case_0.npy"', "entry 0 of 'train': a path holds the set's code, four"),
        ("{", '{"a": ' * 200_000, "is not readable JSON (maximum recursion depth"),
        ("{", "{{", "is not readable JSON (Expecting property name"),
    ],
)
def test_a_list_that_cannot_be_used_is_named(seg, old, new, message):
    seg.edit("0012/0012.json", old, new)
    told = seg.refusal()
    assert "0012.json" in told
    assert message in told


@pytest.fixture
def cap(home):
    return home("m3d-cap")


def test_slices_are_stacked_in_the_order_of_their_numbers_without_the_scout(cap):
    (ref,) = cap.cases("train")["ct_case/000002/Coronal_C_"].volumes
    assert sorted(path.name for path in (cap.set / "M3D_Cap/ct_case/000002/Coronal_C_").iterdir()) == [
        "0.png", "10.png", "15.png", "5.png", "99.png",
    ]  # fmt: skip
    np.testing.assert_array_equal(np.load(ref.path), grey(2))
    assert Path(ref.path).is_relative_to(cap.folder / "cache")
    assert (ref.intensity, ref.spacing_mm_zyx) == ("arbitrary", (1.0, 1.0, 1.0))


def test_an_array_of_the_publishers_program_is_read_in_place(cap):
    (ref,) = cap.cases("train")["ct_case/000001/Axial_lung_window"].volumes
    assert ref.path == str(cap.set / "M3D_Cap_npy/ct_case/000001/Axial_lung_window.npy")
    np.testing.assert_allclose(np.load(ref.path)[0] * 255, grey(1), rtol=1e-6)


def test_the_plane_in_the_name_says_where_the_axes_run(cap):
    assert {name: case.volumes[0].axes for name, case in cap.every().items()} == {
        "ct_case/000001/Axial_lung_window": "IPL", "ct_case/000002/Coronal_C_": "PIL",
        "ct_quizze/000003/Axial_Poschl": "IPL", "ct_case/000004/Sagittal_bone_window": "LIP",
        "ct_case/000005/Axial_C__arterial_phase": "IPL",
    }  # fmt: skip
    assert axes_of("Axial", {"axial": "SPL"}) == "SPL"


def test_a_folder_with_an_accent_is_found_by_its_name_without(cap):
    assert same_text("Pöschl") == "Poschl"
    (ref,) = cap.cases("train")["ct_quizze/000003/Axial_Poschl"].volumes
    np.testing.assert_array_equal(np.load(ref.path), grey(3))


def test_the_findings_are_the_report_or_else_the_discussion(cap):
    train = cap.cases("train")
    assert train["ct_case/000001/Axial_lung_window"].report.text == "Generated findings, number 1."
    assert train["ct_case/000002/Coronal_C_"].report.text == "Generated discussion. study_findings:"


def test_a_patient_of_the_test_list_is_in_no_other_split(cap, caplog):
    dataset = cap.dataset(max_missing=0)
    train = [case.patient for case in dataset.cases("train")]
    test = [case.patient for case in dataset.cases("test")]
    assert "ct_case/000005" in test
    assert not set(train) & set(test)
    (reason,) = dataset.left_out["train"].values()
    assert "patient 'ct_case/000005' is also in the test list and stays there alone" in reason
    assert "1 patients of split 'train' are in another split's list too" in caplog.text
    dataset = cap.dataset()
    listed = {split: [case.id for case in dataset.listed(split)] for split in ("train", "validation", "test")}
    assert listed == {split: list(cap.cases(split)) for split in listed}
    assert list(dataset.unlisted()) == []


def test_a_bad_stack_and_a_bad_text_are_left_out_and_reported_by_name(cap):
    picture = cap.set / "M3D_Cap/ct_case/000002/Coronal_C_/7.png"
    picture.write_bytes(b"no picture")
    text = cap.set / "M3D_Cap/ct_case/000001/text.txt"
    assert text.is_file()
    text.write_bytes(b"study_findings: \xff\xfe")
    dataset = cap.dataset(missing="skip")
    assert [case.id for case in dataset.cases("train")] == ["ct_quizze/000003/Axial_Poschl"]
    for told in (dataset.left_out["train"], dict(zip("12", sorted(cap.dataset().unlisted()), strict=True))):
        said = " ".join(told.values())
        assert f"{picture}: is no readable picture" in said
        assert f"{text}: is no text in UTF-8 ('utf-8' codec can't decode byte 0xff" in said
    fresh = cap.dataset()
    assert "ct_case/000002/Coronal_C_" not in [case.id for case in fresh.listed("train")]
    assert list(fresh.left_out["train"]) == ["ct_case/000002/Coronal_C_"]
    assert f"{text}: is no text in UTF-8" in cap.refusal()


def test_changed_slices_are_stacked_again(cap):
    before = cap.cases("train")["ct_case/000002/Coronal_C_"].volumes[0].path
    (cap.set / "M3D_Cap/ct_case/000002/Coronal_C_/15.png").unlink()
    after = cap.cases("train")["ct_case/000002/Coronal_C_"].volumes[0].path
    assert before != after
    assert len(np.load(after)) == 3


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("first.png", b"", "Coronal_C_/first.png: a slice is named by its number, such as 12.jpeg"),
        ("7.png", b"%!PS-Adobe-3.0 EPSF-3.0\n", "Coronal_C_/7.png: is no readable picture (cannot identify"),
    ],
)
def test_a_slice_that_cannot_be_used_is_named(cap, name, content, message):
    (cap.set / "M3D_Cap/ct_case/000002/Coronal_C_" / name).write_bytes(content)
    assert message in cap.refusal()


def test_a_folder_with_one_slice_is_no_volume(cap):
    folder = cap.set / "M3D_Cap/ct_case/000002/Coronal_C_"
    for name in ("0.png", "5.png", "10.png", "99.png"):
        (folder / name).unlink()
    assert f"{folder}: holds 1 slices of one size, a volume has at least 2" in cap.refusal()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"test"', '"test1k"', "M3D_Cap.json: has no list 'test'; it holds 'train', 'validation', 'test1k'"),
        ('"image": "ct_case', '"image": "elsewhere', "'train': an image lies below ct_case or ct_quizze"),
    ],
)
def test_a_list_of_reports_that_cannot_be_used_is_named(cap, old, new, message):
    cap.edit("M3D_Cap.json", old, new)
    assert message in cap.refusal()


@pytest.fixture
def vqa(home):
    return home("m3d-vqa")


def test_the_questions_of_an_image_are_one_case(vqa):
    case = vqa.cases("validation")["ct_case/000004/Sagittal_bone_window"]
    assert [(asked.text, asked.options[asked.answer]) for asked in case.questions] == [
        ("Which plane is it?", "Sagittal"),
        ("Which modality is it?", "CT"),
    ]
    assert case.questions[0].options == ("Axial", "Coronal", "Sagittal", "None")
    assert len({asked.id for asked in case.questions}) == 2


def test_questions_can_be_chosen_by_type(vqa):
    (only,) = vqa.cases("test", question_types=("2",)).values()
    assert [asked.text for asked in only.questions] == ["Which modality is it?"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("Axial,A\n", "Axial,E\n", "options A, B, C, D, its answer is 'E'"),
        ("Axial,A\n", "Axial,B\n", "gives 'B' as its answer, but its answer's text 'Axial' is 'A'"),
    ],
)
def test_an_answer_that_is_no_option_is_named(vqa, old, new, message):
    file = vqa.set / "M3D-VQA/M3D_VQA_test.csv"
    file.write_bytes(file.read_bytes().replace(b"\r\n", b"\n"))
    vqa.edit("M3D-VQA/M3D_VQA_test.csv", old, new)
    told = vqa.refusal("test")
    assert "M3D_VQA_test.csv: line 2: question 'M3D_VQA_test.csv:2'" in told
    assert message in told
    assert list(vqa.dataset(missing="skip").cases("test")) == []
    (said,) = vqa.dataset().unlisted()
    assert message in said
