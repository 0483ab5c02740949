"""KiTS23, CT-ORG and AbdomenAtlas in miniature: labels, single objects, organ masks, reports, id lists."""

import numpy as np
import pytest
from evidcore_plugin_ct_data.miniatures.abdomen import ATLAS, KITS, ORGANS
from evidcore_plugin_ct_data.miniatures.voxels import mask, volume

from evidcore.api import read, read_mask

SPLITS = ("train", "validation", "test")
META = "AbdomenAtlas3.0MiniWithMeta.csv"


@pytest.fixture
def kits(home):
    return home("kits23")


def test_kits_images_and_labels_run_from_the_top(kits):
    case = kits.every()["case_00003"]
    held = read(case.volumes[0])
    np.testing.assert_array_equal(held.array, volume(3))
    assert held.spacing_mm_zyx == pytest.approx((0.5, 0.92, 0.92))
    np.testing.assert_array_equal(read_mask(case.masks["kidney tumor"], like=held), mask(3))
    kidney, cyst = (read_mask(case.masks[name], like=held) for name in ("kidney", "kidney cyst"))
    assert kidney.sum() == 6 * 5 * 10 - mask(3).sum()
    assert np.argwhere(cyst).tolist() == [[5, 7, 9]]


def test_kits_objects_are_those_of_one_annotator_and_drafts_are_none(kits):
    case = kits.every()["case_00003"]
    assert list(case.masks) == ["kidney", "kidney tumor", "kidney cyst", "cyst 1", "kidney 1", "tumor 1"]
    held = read(case.volumes[0])
    for annotation in (1, 2, 3):
        drawn = kits.every(annotation=annotation)["case_00003"].masks["tumor 1"]
        assert read_mask(drawn, like=held).sum() == mask(3).sum() + annotation
    late = kits.every(annotation=3)["case_00400"].masks["tumor 1"]  # drawn once
    assert late.path.endswith("tumor_instance-1_annotation-1.nii.gz")
    assert list(kits.every(instances=False)["case_00003"].masks) == ["kidney", "kidney tumor", "kidney cyst"]


def test_kits_findings_come_from_objects_and_the_clinical_table(kits):
    cases = kits.every()
    tumour, cyst = cases["case_00003"].findings
    assert (tumour.state, tumour.size_mm, cyst.state) == ("present", pytest.approx(54.0), "present")
    assert cases["case_00004"].state_of("kidney cyst") == "absent"
    assert cases["case_00003"].notes == {"gender": "female", "malignant": True}


def test_kits_may_be_given_by_its_inner_folder(kits):
    assert set(kits.every(path="set/dataset")) == set(KITS)


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("imaging", "https://huggingface.co/datasets/neheller/KiTS-Challenge-Imaging"),
        ("segmentation", "a clone of https://github.com/neheller"),
    ],
)
def test_what_is_missing_of_kits_says_where_it_comes_from(kits, name, place):
    split = next(split for split in SPLITS if "case_00003" in kits.cases(split))
    (kits.set / f"dataset/case_00003/{name}.nii.gz").unlink()
    told = kits.refusal(split)
    assert f"case_00003/{name}.nii.gz: there is no such file. It comes from {place}" in told


@pytest.fixture
def atlas(home):
    return home("abdomen-atlas-3-mini", validation_share=0.0)


def test_atlas_is_divided_by_its_id_lists(atlas):
    for options, count in (({}, 5), ({"id_lists": "OOD"}, 3)):
        parts = [list(atlas.cases(split, **options)) for split in SPLITS]
        assert parts == [list(ATLAS[:count]), [], list(ATLAS[count:])]
    train, validation = (set(atlas.cases(split, validation_share=0.5)) for split in SPLITS[:2])
    assert train | validation == set(ATLAS[:5])
    assert validation


def test_atlas_masks_are_named_by_their_files(atlas):
    case = atlas.cases()["BDMAP_00000003"]
    held = read(case.volumes[0])
    np.testing.assert_array_equal(held.array, volume(2))
    assert set(case.masks) == {name.replace("_", " ") for name in ORGANS}
    assert "kidney left" in case.masks
    np.testing.assert_array_equal(read_mask(case.masks["kidney left"], like=held), mask(2 + 1))
    empty = atlas.cases()["BDMAP_00000002"]
    assert not read_mask(empty.masks["liver lesion"], like=read(empty.volumes[0])).any()


def test_atlas_findings_have_size_and_side(atlas):
    liver, kidney, pancreas = atlas.cases()["BDMAP_00000001"].findings
    assert (liver.state, liver.size_mm, liver.side) == ("present", pytest.approx(31.0), None)
    assert (kidney.state, kidney.size_mm, kidney.side) == ("present", 12.5, "left")
    assert (pancreas.state, pancreas.size_mm) == ("absent", None)
    assert atlas.cases()["BDMAP_00000002"].present() == ()


def test_atlas_reports_are_chosen_by_kind(atlas):
    texts = {"structured": "FINDINGS: generated,\nnumber 0.", "narrative": "A generated report, number 0."}
    for kind, text in texts.items():
        assert atlas.cases(report=kind)["BDMAP_00000001"].report.text == text
    assert atlas.cases(report="fusion narrative")["BDMAP_00000001"].report is None


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("number of liver lesion instances", "liver lesions", "has no column 'number of liver lesion"),
        (",2,3.1,", ",two,3.1,", "column 'number of liver lesion instances': must be a number, got 'two'"),
        (",2,3.1,", ",2,nan,", "column 'largest liver lesion diameter (cm)': must be a number, got 'nan'"),
    ],
)
def test_atlas_names_a_bad_cell(atlas, old, new, message):
    atlas.edit(META, old, new)
    told = atlas.refusal()
    assert message in told
    assert META in told
    assert ("case 'BDMAP_00000001', column" in told) == old.startswith(",")


@pytest.fixture
def ct_org(home):
    return home("ct-org")


def test_ct_org_is_divided_as_its_publisher_did(ct_org):
    assert list(ct_org.cases("test")) == ["volume-0", "volume-20"]
    assert ct_org.cases("validation", validation_share=0.0) == {}


def test_ct_org_has_hu_and_a_mask_of_each_label(ct_org):
    case = ct_org.cases("test")["volume-0"]
    held = read(case.volumes[0])
    np.testing.assert_array_equal(held.array, volume(0))
    assert (held.intensity, case.patient) == ("hu", None)
    assert list(case.masks) == ["liver", "bladder", "lungs", "kidneys", "bone", "brain"]
    for label, ref in enumerate(case.masks.values(), start=1):
        wanted = np.zeros(held.shape_zyx, bool)
        wanted[1:4, label, 2:6] = True
        np.testing.assert_array_equal(read_mask(ref, like=held), wanted)
    without = ct_org.cases("train")["volume-21"]
    assert not read_mask(without.masks["brain"], like=read(without.volumes[0])).any()


def test_ct_org_may_lie_in_two_folders(ct_org):
    flat = ct_org.every()
    for kind in ("volume", "labels"):
        folder = ct_org.set / ("volumes" if kind == "volume" else kind)
        folder.mkdir()
        for path in list(ct_org.set.glob(f"{kind}-*")):
            path.rename(folder / path.name)
    cases = ct_org.every()
    assert list(cases) == list(flat)
    assert cases["volume-22"].masks["liver"].path == str(ct_org.set / "labels" / "labels-22.nii.gz")
    assert read_mask(cases["volume-22"].masks["liver"], like=read(cases["volume-22"].volumes[0])).any()


def test_what_is_missing_of_ct_org_is_named(ct_org):
    (ct_org.set / "labels-20.nii.gz").unlink()
    assert f"{ct_org.set / 'labels-20.nii.gz'}: there is no such file. It comes" in ct_org.refusal("test")
