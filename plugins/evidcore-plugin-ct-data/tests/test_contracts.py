"""Published sets, read from their miniatures, keep the contract of a data set."""

import pytest
from evidcore_testing import check_dataset

SETS = {
    "abdomen-atlas-3-mini": {"report": "narrative"},
    "ct-org": {"validation_share": 0.5},
    "ct-rate": {"reconstructions": "first"},
    "kits23": {"annotation": 2},
    "m3d-cap": {"limit": 1},
    "m3d-seg": {"limit": 1},
    "m3d-vqa": {"limit": 1},
    "omni-med-vqa": {"limit": 1},
    "rad-chestct": {"limit": 1},
}


@pytest.mark.parametrize("name", SETS)
def test_a_set_keeps_the_contract(name, home):
    made = home(name, **({"codes": ["0004"]} if name == "m3d-seg" else {}))
    check_dataset(made.dataset(), other=made.dataset(**SETS[name]))
