"""Which kidney, tumour or cyst of KiTS23 a text means: rules by hand, and files with known objects."""

import json

import numpy as np
import pytest
from evidcore_plugin_ct_data.kits23_queries import TEMPLATES, Thing, meant, queries, read_texts, things_of
from evidcore_plugin_ct_data.miniatures.voxels import nifti

from evidcore.api import DataError, MaskRef
from evidcore.errors import RecipeError

TEXTS = {name: [f"{name} of {{kidney_side}}, {number}" for number in range(3)] for name in TEMPLATES}
RIGHT = Thing(name="kidney 1", voxels=90, kidney="kidney 1", side="right")
LEFT = Thing(name="kidney 2", voxels=80, kidney="kidney 2", side="left")


def lesion(name, owner, voxels=5):
    return Thing(name=name, voxels=voxels, kidney=owner.name, side=owner.side)


def names(*things):
    return {template: thing.name for template, thing in meant([RIGHT, LEFT, *things]).items()}


def test_a_single_tumour_makes_one_kidney_ill_and_the_other_healthy():
    kidneys = {"kidney_only_with_tumor": "kidney 2", "kidney_only_healthy": "kidney 1"}
    assert names(lesion("tumor 1", LEFT)) == kidneys | {"tumor_only_global": "tumor 1"}


def test_what_both_kidneys_have_tells_none_of_them():
    result = names(lesion("tumor 1", LEFT), lesion("tumor 2", RIGHT), lesion("cyst 1", RIGHT))
    assert result == {
        "kidney_only_with_cyst": "kidney 1",
        "kidney_only_with_both_tumor_and_cyst": "kidney 1",
        "tumor_only_in_kidney": "tumor 1",  # once a case: the first
        "cyst_only_global": "cyst 1",
    }


def test_of_several_in_a_kidney_the_largest_is_meant_unless_another_is_as_large():
    two = [lesion("cyst 1", LEFT, 5), lesion("cyst 2", LEFT, 7)]
    assert names(*two)["cyst_largest_in_kidney"] == "cyst 2"
    assert "cyst_largest_in_kidney" not in names(*two, lesion("cyst 3", LEFT, 7))
    assert names(*two, lesion("cyst 3", RIGHT, 1))["cyst_only_in_kidney"] == "cyst 3"


def test_queries_name_the_side_and_leave_kidneys_open():
    asked = {item.id: item for item in queries("case_00007", [RIGHT, LEFT, lesion("tumor 1", LEFT)], TEXTS)}
    kidney, tumor = asked["kidney_only_with_tumor"], asked["tumor_only_global"]
    assert (kidney.masks, kidney.among) == (("kidney 2",), ("kidney 1", "kidney 2"))
    assert (tumor.masks, tumor.among, tumor.kind) == (("tumor 1",), (), "tumor only global")
    assert tumor.text in {text.replace("{kidney_side}", "the left kidney") for text in TEXTS[tumor.id]}
    assert queries("case_0", [RIGHT, LEFT], TEXTS) == ()  # both are healthy
    things = [RIGHT, LEFT, lesion("cyst 1", LEFT)]
    assert len({queries(f"case_{number}", things, TEXTS)[0].text for number in range(30)}) == 3


def drawn(folder, **objects):
    """Write each object, a list of (z, y, x) slices, as a file; return the masks."""
    masks = {}
    for name, part in objects.items():
        array = np.zeros((8, 20, 40), np.uint8)
        if part is not None:
            array[part] = 1
        path = folder / f"{name}.nii.gz"
        nifti(path, array, "IPL", (2.0, 1.0, 1.0))
        masks[name.replace("_", " ")] = MaskRef(path=str(path))
    return masks


def test_objects_are_measured_and_belong_to_the_kidney_that_they_meet_or_are_nearer_to(tmp_path):
    masks = drawn(
        tmp_path,
        kidney_1=np.s_[2:6, 8:12, 28:34],  # the first one is the left: x runs to the left
        kidney_2=np.s_[2:6, 8:12, 4:10],
        tumor_1=np.s_[3:5, 9:11, 9:12],  # meets the second
        cyst_1=np.s_[0:1, 8:9, 24:27],  # meets none, and is nearer to the first
        cyst_2=None,
    )
    result = things_of(masks, tmp_path / "cache")
    assert [(item.name, item.voxels, item.kidney, item.side) for item in result] == [
        ("kidney 1", 4 * 4 * 6, "kidney 1", "left"), ("kidney 2", 4 * 4 * 6, "kidney 2", "right"),
        ("tumor 1", 2 * 2 * 3, "kidney 2", "right"), ("cyst 1", 3, "kidney 1", "left"),
    ]  # fmt: skip
    (entry,) = (tmp_path / "cache" / "kits23-objects").glob("[!C]*")
    assert things_of(masks, tmp_path / "cache") == result
    assert entry.exists()


def test_of_one_kidney_the_middle_of_the_scan_tells_the_side(tmp_path):
    (alone,) = things_of(drawn(tmp_path, kidney_1=np.s_[2:6, 8:12, 28:34]), tmp_path / "cache")
    assert alone.side == "left"
    without = drawn(tmp_path, kidney_1=None, tumor_1=np.s_[2:6, 8:12, 28:34])
    assert things_of(without, tmp_path / "cache") == []


def test_cases_come_with_queries(home):
    kits = home("kits23")
    (kits.folder / "template.json").write_text(json.dumps(TEXTS))
    case = next(iter(kits.cases("train", queries="template.json").values()))
    assert {item.id for item in case.queries} >= {"kidney_only_with_tumor", "tumor_only_global"}
    assert all(set(item.masks) <= set(case.masks) for item in case.queries)
    assert kits.cases("train")[case.id].queries == ()
    plain, asking = kits.dataset().fingerprint(), kits.dataset(queries="template.json").fingerprint()
    (kits.folder / "template.json").write_text(json.dumps(TEXTS | {TEMPLATES[0]: ["another"]}))
    assert len({plain, asking, kits.dataset(queries="template.json").fingerprint()}) == 3


def test_queries_without_single_objects_are_refused(home):
    with pytest.raises(RecipeError, match=r"queries = 'template.json' are about single objects, and insta"):
        home("kits23").dataset(queries="template.json", instances=False)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[" * 200_000, r"template\.json: cannot be read as JSON \(maximum recursion depth"),
        ("{", r"template\.json: cannot be read as JSON \(Expecting property name"),
        ("[]", r"template 'kidney_only_with_tumor' must have a list of texts, got null"),
        (json.dumps(TEXTS | {TEMPLATES[-1]: "It."}), rf"template '{TEMPLATES[-1]}' must .* got \"It\.\""),
    ],
)
def test_texts_that_cannot_be_used_are_named(tmp_path, content, said):
    (tmp_path / "template.json").write_text(content)
    with pytest.raises(DataError, match=said):
        read_texts(tmp_path / "template.json")
