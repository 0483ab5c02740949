import numpy as np
import pytest

from evidcore.data import Geometry, Volume
from evidcore.data.body import coarse, midline_mm, outline

SIZE, SPACING = (8, 100, 130), (4.0, 2.5, 2.5)


def volume(array: np.ndarray, spacing=SPACING) -> Volume:
    geometry = Geometry(shape_zyx=array.shape, affine=np.diag([*spacing, 1.0]))
    return Volume(array=array.astype(np.float32), geometry=geometry, intensity="hu")


def body(centre_x: float = 60.0, half_width: float = 48.0, *, table: bool = False) -> np.ndarray:
    y, x = np.mgrid[: SIZE[1], : SIZE[2]]
    hu = np.where(((y - 45) / 30) ** 2 + ((x - centre_x) / half_width) ** 2 < 1, 40.0, -1000.0)
    if table:
        hu[80:82, 2:90] = 200.0
    return hu[None].repeat(SIZE[0], axis=0)


def test_blocks_hold_the_means_of_their_voxels_and_lie_where_they_do():
    array = np.random.default_rng(0).normal(size=(5, 9, 13))
    fine = volume(array, (2.5, 0.9, 0.7))
    blocks = coarse(fine)
    assert blocks.shape_zyx == (5, 4, 4)  # 1, 2 and 3 voxels come nearest to 2 mm
    assert np.allclose(blocks.spacing_mm_zyx, (2.5, 1.8, 2.1))
    for z, y, x in ((0, 0, 0), (4, 3, 3), (2, 1, 2)):
        part = array[z, 2 * y : 2 * y + 2, 3 * x : 3 * x + 3]
        assert blocks.array[z, y, x] == pytest.approx(part.mean(), abs=1e-6)
        middle = fine.affine @ [z, 2 * y + 0.5, 3 * x + 1, 1]
        assert np.allclose(blocks.affine @ [z, y, x, 1], middle)


@pytest.mark.parametrize("table", [False, True])
def test_the_midline_is_the_middle_of_the_body_and_not_of_the_grid_or_the_table(table):
    result = midline_mm(volume(body(table=table)))
    assert result == pytest.approx(60.0 * 2.5, abs=2.5)
    assert not outline(volume(body(table=True)))[:, 80:82].any()


def test_the_midline_does_not_depend_on_the_voxels():
    fine = body().repeat(2, axis=1).repeat(2, axis=2)
    assert midline_mm(volume(fine, (4.0, 1.25, 1.25))) == pytest.approx(60.5 * 2.5 - 0.625, abs=2.5)


@pytest.mark.parametrize(
    "hu",
    [body(60.0, 35.0), body(10.0, 48.0), body(64.0, 90.0), np.full(SIZE, -1000.0)],
    ids=["narrower than 200 mm", "cut at one side", "cut at both sides", "air"],
)
def test_there_is_no_midline_where_the_scan_does_not_show_the_whole_width(hu):
    assert midline_mm(volume(hu)) is None
