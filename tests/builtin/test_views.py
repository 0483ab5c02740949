import dataclasses
import itertools
from pathlib import Path

import pytest
from evidcore_testing.checks_view import check_view
from evidcore_testing.data import volume_case
from hypothesis import given, settings
from hypothesis import strategies as st

from evidcore.api import Box, Case, Crop, EncoderInput, TextPart, VisualPart, VolumeRef
from evidcore.builtin.views import Slices, Volume, spread
from evidcore.errors import RecipeError

VOLUMES = EncoderInput(size_zyx=(12, 16, 16), spacing_mm_zyx=None, windows=((-1000.0, 400.0),))
SLICEWISE = dataclasses.replace(VOLUMES, size_zyx=(8, 32, 24), any_depth=True)
BOXES = {
    (0.0, 0.0, 1000.0, 1000.0): (0.0, 1.0, 0.0, 1.0),
    (250.0, 500.0, 750.0, 1000.0): (0.5, 1.0, 0.25, 0.75),
}
OUTSIDE = [(-1.0, 0.0, 5.0, 5.0), (0.0, 0.0, 1000.5, 5.0), (5.0, 0.0, 4.0, 5.0), (0.0, 0.0, 5.0)]


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return volume_case(tmp_path, size_zyx=(13, 16, 20))


def twice(case: Case) -> Case:
    return dataclasses.replace(case, volumes=case.volumes * 2)


def slice_crop(height: int = 80, width: int = 50, y: int = 0, x: int = 0) -> Crop:
    return Crop(volume=VolumeRef(path="a.nii"), box_zyx=(7, 8, y, y + height, x, x + width))


def test_they_keep_the_contract_of_a_view(case):
    check_view(Volume(), case, VOLUMES, boxes=BOXES, outside=OUTSIDE)
    check_view(Slices(slices=5), case, SLICEWISE, boxes=BOXES, outside=OUTSIDE)


def test_a_volume_is_one_part_and_several_are_tagged(case):
    assert Volume().render(case) == (VisualPart(crop=Crop(volume=case.volumes[0])),)
    texts = [part.text for part in Volume().render(twice(case)) if isinstance(part, TextPart)]
    assert texts == ["volume 1:", "volume 2:"]


def test_slices_are_tagged_with_their_source_index(case):
    parts = Slices(slices=3).render(case)
    assert [part.text for part in parts[::2]] == ["slice 2:", "slice 6:", "slice 10:"]
    assert [part.crop.box_zyx for part in parts[1::2]] == [(z, z + 1, 0, 16, 0, 20) for z in (2, 6, 10)]
    tags = [part.text for part in Slices(slices=1).render(twice(case))[::2]]
    assert tags == ["volume 1, slice 6:", "volume 2, slice 6:"]


@settings(deadline=None)
@given(depth=st.integers(1, 400), count=st.integers(1, 64))
def test_slices_are_spread_evenly(depth, count):
    chosen = spread(depth, count)
    assert len(chosen) == min(depth, count)
    assert chosen == sorted(set(chosen))
    assert 0 <= chosen[0] <= chosen[-1] < depth
    gaps = {after - before for before, after in itertools.pairwise(chosen)}
    assert not gaps or max(gaps) - min(gaps) <= 1
    assert abs(chosen[0] - (depth - 1 - chosen[-1])) <= 1, "as much is left out below as above"


def test_slices_go_one_at_a_time_to_an_encoder_that_takes_any_depth(case):
    part = Slices().render(case)[1]
    assert Slices().size_zyx(part, SLICEWISE) == (1, 32, 24)
    with pytest.raises(
        RecipeError, match=r"'slices' shows one slice .* takes exactly 12\. Use view = \{ use = \"vol"
    ):
        Slices().size_zyx(part, VOLUMES)


@settings(deadline=None)
@given(
    height=st.integers(1, 700), width=st.integers(1, 700),
    corner=st.tuples(st.integers(0, 50), st.integers(0, 50)), data=st.data(),
)  # fmt: skip
def test_a_box_goes_out_and_comes_back(height, width, corner, data):
    y, x = corner
    crop = slice_crop(height, width, y, x)
    y0, x0 = data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))
    y1, x1 = data.draw(st.integers(y0 + 1, height)), data.draw(st.integers(x0 + 1, width))
    box = Box(z=7, y0=y + y0, y1=y + y1, x0=x + x0, x1=x + x1)
    shown = crop.shown_box(box)
    assert crop.voxels_of(shown) == box
    assert crop.voxels_of([round(edge) for edge in shown]) == box, "whole numbers are exact enough"


@pytest.mark.parametrize("size", range(1, 600, 7))
def test_the_far_edge_is_exactly_1000(size):
    assert slice_crop(size, size).shown_box(Box(z=7, y0=0, y1=size, x0=0, x1=size)) == (0, 0, 1000, 1000)


def test_a_box_is_taken_from_the_part_of_the_slice_that_is_shown():
    # by hand: 80 rows from 100, 50 columns from 10
    assert slice_crop(y=100, x=10).voxels_of((200, 250, 600, 500)) == Box(z=7, y0=120, y1=140, x0=20, x1=40)


@pytest.mark.parametrize(
    ("thin", "rows", "columns"),
    [
        ((0, 0, 0, 0), (0, 1), (0, 1)), ((1000, 1000, 1000, 1000), (79, 80), (49, 50)),
        ((500, 500, 501, 503), (40, 41), (25, 26)), ((510, 0, 510, 1000), (0, 80), (25, 26)),
    ],
)  # fmt: skip
def test_a_box_thinner_than_a_voxel_is_its_voxel(thin, rows, columns):
    box = slice_crop().voxels_of(thin)
    assert ((box.y0, box.y1), (box.x0, box.x1)) == (rows, columns)


@pytest.mark.parametrize(
    ("box", "shown"),
    [
        ((0, 0, 1001, 5), r"the box \[0, 0, 1001, 5\] must lie inside what was shown: 0 <= x0 <= x1 <= 1000"),
        ((9, 0, 8, 5), r"the box \[9, 0, 8, 5\] must lie"),
        ((0, 0, float("nan"), 5), r"the box \[0, 0, nan, 5\] must lie"),
        ((0, 0, 5), r"a box has 4 numbers x0, y0, x1, y1, got \[0, 0, 5\]"),
    ],
)
def test_a_box_that_means_nothing_is_refused(box, shown):
    with pytest.raises(ValueError, match=shown):
        slice_crop().voxels_of(box)
    outside = r"z=8, .* lies outside the slice shown, z=7, y=0\.\.80, x=0\.\.50"
    with pytest.raises(ValueError, match=outside):
        slice_crop().shown_box(Box(z=8, y0=0, y1=1, x0=0, x1=1))


def test_a_thick_part_has_no_slice(case):
    part = VisualPart(crop=Crop(volume=case.volumes[0]))
    assert Volume().to_source(part, (0, 0, 10, 10)) is None
    assert Volume().from_source(part, Box(z=1, y0=0, y1=1, x0=0, x1=1)) is None
    with pytest.raises(ValueError, match=r"not a single slice: '.*case-0\.nii\.gz#intensity=hu'"):
        Slices().to_source(part, (0, 0, 10, 10))
