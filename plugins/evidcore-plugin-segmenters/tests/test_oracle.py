"""What a segmenter is asked about a known mask."""

import numpy as np
import pytest
from evidcore_plugin_segmenters.audit.oracle import key_slice, oracle_boxes, reachable, ways_to_ask
from evidcore_plugin_segmenters.regions import moved, parts

from evidcore.api import Box


def truth():
    """Two blocks, both largest on slice 3; a third that begins above it; a speck on slice 3."""
    mask = np.zeros((8, 30, 40), dtype=np.bool_)
    mask[1:5, 4:14, 5:15] = True
    mask[3, 4:16, 5:15] = True
    mask[2:5, 20:28, 30:38] = True
    mask[6:8, 2:6, 30:34] = True
    mask[3, 29, 0] = True
    return mask


def test_the_oracle_boxes_the_parts_of_the_slice_that_shows_most():
    assert key_slice(truth()) == 3
    assert oracle_boxes(truth()) == (Box(z=3, y0=4, y1=16, x0=5, x1=15), Box(z=3, y0=20, y1=28, x0=30, x1=38))


def test_a_perfect_propagation_finds_the_parts_that_meet_a_box():
    result = reachable(truth(), oracle_boxes(truth()))
    wanted = truth()
    wanted[6:8] = False
    wanted[3, 29, 0] = False
    assert np.array_equal(result, wanted)
    assert not reachable(truth(), ()).any()


def test_boxes_are_moved_by_their_share_in_all_four_ways():
    asked = ways_to_ask(truth(), "block", (0.25, 0.5))
    moved_by = ["box moved 25 %", "box moved 50 %"]
    assert [way.name for way in asked] == ["oracle box", "oracle mask", "name as text", *moved_by]
    assert {way.key for way in asked} == {3}
    assert np.array_equal(asked[1].tries[0][0].mask, truth()[3])
    (oracle,), quarter = asked[0].tries, asked[3].tries
    first, second = (prompt.box for prompt in oracle)
    assert (first, second) == oracle_boxes(truth())
    ways = [(-1, -1), (-1, 1), (1, -1), (1, 1)]
    moves = [(item.box.y1 - first.y1, item.box.x1 - first.x1) for item, _ in quarter]
    assert moves == [(3 * y, 2 * x) for y, x in ways]  # of 12 x 10
    moves = [(item.box.y0 - second.y0, item.box.x0 - second.x0) for _, item in quarter]
    assert moves == [(2 * y, 2 * x) for y, x in ways]  # of 8 x 8


@pytest.mark.parametrize(
    ("by", "wanted"),
    [
        ((0.5, 0.5), (15, 25, 14, 22)),
        ((-0.5, 0.0), (5, 15, 10, 18)),
        ((-2.0, 9.0), (0, 1, 39, 40)),  # at least one voxel stays
        ((-1.4, 0.25), (0, 6, 12, 20)),
    ],
)
def test_what_leaves_the_slice_is_cut_off(by, wanted):
    box = moved(Box(z=2, y0=10, y1=20, x0=10, x1=18), by, (30, 40))
    assert (box.y0, box.y1, box.x0, box.x1) == wanted


def test_parts_are_connected_by_corners_and_no_specks():
    plane = np.zeros((10, 20), dtype=np.bool_)
    plane[0:3, 0:3] = True
    plane[3:5, 3:5] = True
    plane[8, 15] = True
    assert [int(part.sum()) for part in parts(plane)] == [13]
    assert [int(part.sum()) for part in parts(plane & (np.arange(20) > 9))] == [1]
    assert parts(plane & (np.arange(20) > 9), least_voxels=2) == []
    many = np.zeros((40, 40), dtype=np.bool_)
    many[::3, ::3] = True
    assert len(parts(many)) == 14 * 14  # alike, so each is an object
    assert parts(np.zeros((4, 4), dtype=np.bool_)) == []
