"""RAD-ChestCT in miniature: arrays from the top down, 84 x 52 labels to the 18, patients, missing scans."""

import numpy as np
import pytest
from evidcore_plugin_ct_data.miniatures.voxels import volume
from evidcore_plugin_ct_data.rad_chestct import FROM_ABNORMALITIES, METADATA, TABLES
from evidcore_plugin_reports.findings import CT_RATE_FINDINGS


@pytest.fixture
def chest(home):
    return home("rad-chestct")


def test_the_splits_are_the_published_tables(chest):
    ids = {split: list(chest.cases(split)) for split in TABLES}
    assert ids == {"train": ["trn00001", "trn00002"], "validation": ["val00003"], "test": ["tst00004"]}


def test_an_array_runs_from_the_highest_slice_down(chest):
    (ref,) = chest.cases("test")["tst00004"].volumes
    assert (ref.key, ref.axes, ref.spacing_mm_zyx, ref.intensity) == ("ct", "IPL", (0.8, 0.8, 0.8), "hu")
    with np.load(ref.path) as arrays:
        np.testing.assert_array_equal(arrays[ref.key][::-1], volume(4))


def test_84_labels_become_the_18_by_the_map(chest):
    case = chest.cases("train")["trn00001"]
    assert set(case.present()) == {
        "medical material",  # pacemaker_or_defib*heart
        "arterial wall calcification",  # calcification*heart sets both
        "coronary artery wall calcification",
        "lung nodule",  # nodulegr1cm*lung
    }
    assert case.state_of("lung opacity") == "absent"  # groundglass*lung alone does not set it
    assert case.state_of("mosaic attenuation pattern") is None
    assert len(case.findings) == 17
    assert chest.cases("train")["trn00002"].present() == ()


def test_the_mosaic_pattern_is_unknown_unless_told_absent_and_never_present(chest):
    assert FROM_ABNORMALITIES["mosaic attenuation pattern"] == []
    for split in TABLES:
        for case in chest.cases(split, mosaic="absent").values():
            assert case.state_of("mosaic attenuation pattern") == "absent"
            assert tuple(item.name for item in case.findings) == CT_RATE_FINDINGS


def test_the_map_uses_27_abnormalities_and_both_calcifications_are_one(chest):
    sources = {name for names in FROM_ABNORMALITIES.values() for name in names}
    assert len(sources) == 27
    assert set(FROM_ABNORMALITIES) == set(CT_RATE_FINDINGS)
    calcifications = ("arterial wall calcification", "coronary artery wall calcification")
    for case in chest.cases("train").values():
        assert len({case.state_of(name) for name in calcifications}) == 1


def test_patients_come_from_the_metadata(chest):
    assert chest.cases("validation")["val00003"].patient == "patient3"
    chest.edit(METADATA, "val00003", "val00033")
    told = chest.refusal("validation")
    assert "imgvalid_Abnormality_and_Location_Labels.csv: line 2, scan 'val00003'" in told
    assert "names no patient for it (column MRN_DEID)" in told
    assert {case.id for case in chest.dataset().cases("test")} == {"tst00004"}


def test_the_scans_may_lie_in_a_folder_of_their_own(chest):
    (chest.set / "images").mkdir()
    for file in chest.set.glob("*.npz"):
        file.rename(chest.set / "images" / file.name)
    assert list(chest.cases("test", volumes="images")) == ["tst00004"]


def test_an_abnormality_without_columns_is_named_with_the_nearest(chest):
    for _ in range(3):
        chest.edit(TABLES["test"], "scarring*", "scaring*")
    told = "no column of abnormality 'scarring', written 'scarring*<location>'. Did you mean 'scaring'?"
    assert told in chest.refusal("test")


def test_a_label_that_is_none_is_named(chest):
    chest.edit(TABLES["test"], "tst00004,0", "tst00004,yes")
    told = chest.refusal("test")
    assert "line 2, scan 'tst00004', column 'atelectasis*lung': a label is 0 or 1, got 'yes'" in told
