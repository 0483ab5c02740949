"""The merger of a published tower keeps the contract of a bridge, and encoders that of what can be fitted."""

import pytest
from evidcore_plugin_encoders.slice_encoders import TimmSlices
from evidcore_plugin_encoders.vit3d import ViT3D
from evidcore_testing import check_bridge, check_fit, tiny_vision

from evidcore.registry.factory import build

SMALL = {"size_zyx": (8, 16, 16), "patch_zyx": (4, 8, 8), "width": 24}


def test_native_merger():
    sizes = {"width": 3 * 4 * 32, "text_width": 64, "grid_zyx": (1, 3, 3)}
    given = {**sizes, "vision": tiny_vision("qwen3_vl")}
    check_bridge(
        lambda: build("bridge", {"use": "native-merger"}, given=given, where="test"), **sizes,
        other_grids=[(2, 2, 2), (3, 3, 2)],
    )  # fmt: skip


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
