"""Published sets, read from their miniatures, keep the contract of a data set."""

import pytest
from evidcore_plugin_ct_data.miniatures.abdomen import CT_ORG, KITS
from evidcore_plugin_ct_data.miniatures.m3d import SETS as PICTURES
from evidcore_testing import check_dataset

from evidcore.errors import NotDownloadedError

SETS = {
    "abdomen-atlas-3-mini": {"report": "narrative"}, "ct-org": {"validation_share": 0.5},
    "ct-rate": {"reconstructions": "first"}, "kits23": {"annotation": 2}, "m3d-cap": {"limit": 1},
    "m3d-seg": {"limit": 1}, "m3d-vqa": {"limit": 1}, "omni-med-vqa": {"limit": 1},
    "rad-chestct": {"limit": 1},
}  # fmt: skip


@pytest.mark.parametrize("name", SETS)
def test_a_set_keeps_the_contract(name, home):
    made = home(name, **({"codes": ["0004"]} if name == "m3d-seg" else {}))
    check_dataset(made.dataset(), other=made.dataset(**SETS[name]))


@pytest.mark.parametrize(
    ("name", "options", "count"),
    [
        ("kits23", {}, len(KITS)),
        ("ct-org", {"validation_share": 0.4}, len(CT_ORG)),
        ("omni-med-vqa", {}, sum(PICTURES.values())),
        ("m3d-seg", {"codes": ("0004",), "validation_share": 0.5}, 5),
    ],
)
def test_a_drawn_split_uses_every_case_once(home, name, options, count):
    made = home(name, **options)
    parts = [made.cases(split) for split in ("train", "validation", "test")]
    assert sum(map(len, parts)) == len(set().union(*parts)) == count
    assert all(parts)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("ct-org", r"holds no files volume-0.nii.gz .* Fetch CT-ORG from https"),
        ("ct-rate", r"there is no such folder, .* It comes from https://huggingface.co/datasets/ibrahimh"),
        ("kits23", r"holds no folders case_00000 and so on\. Clone github.com/neheller"),
        ("omni-med-vqa", "there is no such folder, so the set is not on this machine"),
    ],
)
def test_a_set_that_is_not_there_says_where_it_comes_from(home, name, told):
    with pytest.raises(NotDownloadedError, match=f"/none: {told}"):
        home(name).cases(path="none")
