"""Encoders keep the contract of what can be fitted."""

import pytest
from evidcore_plugin_encoders.slice_encoders import TimmSlices
from evidcore_plugin_encoders.vit3d import ViT3D
from evidcore_testing import check_fit

SMALL = {"size_zyx": (8, 16, 16), "patch_zyx": (4, 8, 8), "width": 24}


@pytest.mark.parametrize(
    ("made", "options"),
    [
        (lambda: ViT3D(**SMALL), {"supervision": ("contrastive", "labels")}),
        (lambda: TimmSlices(size=32, slices=2), {}),
    ],
    ids=["vit3d", "timm-slices"],
)
def test_fitting(made, options, cases, tmp_path):
    check_fit(made, cases, cases, tmp_path, options={"steps": 2, "cases_per_step": 2, **options})
