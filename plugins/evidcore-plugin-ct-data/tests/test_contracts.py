"""Published sets, read from their miniatures, keep the contract of a data set."""

import pytest
from evidcore_plugin_ct_data.miniatures import write
from evidcore_testing import check_dataset

from evidcore.registry.factory import build


@pytest.mark.parametrize("name", ["rad-chestct", "m3d-seg", "m3d-cap", "m3d-vqa", "omni-med-vqa"])
def test_a_set_keeps_the_contract(name, tmp_path):
    write(name, tmp_path / "set")
    table = {"use": name, "path": "set"} | ({"codes": ["0004"]} if name == "m3d-seg" else {})
    given = {"recipe_folder": tmp_path, "cache_folder": tmp_path / "cache"}
    one, other = (build("dataset", table | more, given=given, where=name) for more in ({}, {"limit": 1}))
    check_dataset(one, other=other)
