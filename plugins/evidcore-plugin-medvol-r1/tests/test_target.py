import dataclasses
import random
import statistics

import numpy as np
import pytest
from evidcore_plugin_medvol_r1 import target
from evidcore_plugin_medvol_r1.target import PARTS, SMALLEST_PART, Rule, gold_slice, measure, slice_boxes

from evidcore.api import Box, DataError, MaskRef


def test_it_is_the_high_median_of_the_standard_library():
    rng = random.Random(3)
    for _ in range(200):
        areas = {z: rng.randint(0, 9) for z in range(24)}
        shown = sorted(rng.sample(range(24), rng.randint(1, 24)))
        ranked = sorted((z for z in shown if areas[z]), key=lambda z: -areas[z])[:10]  # sorted is stable
        expected = statistics.median_high(ranked) if ranked else None
        assert gold_slice(areas, shown) == expected


def flooded(plane):
    """Return the 8-connected parts of a plane by a plain flood fill: sets of (y, x)."""
    left, parts = {(int(y), int(x)) for y, x in np.argwhere(plane)}, []
    while left:
        part, edge = set(), [left.pop()]
        while edge:
            y, x = edge.pop()
            part.add((y, x))
            near = {(y + dy, x + dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1)} & left
            left -= near
            edge += near
        parts.append(part)
    return parts


def tight(part, z=0):
    ys, xs = zip(*part, strict=True)
    return Box(z=z, y0=min(ys), y1=max(ys) + 1, x0=min(xs), x1=max(xs) + 1)


def test_parts_agree_with_a_flood_fill():
    rng = np.random.default_rng(5)
    for _ in range(60):
        plane = rng.random((12, 15)) < 0.25
        for most, smallest in ((1, 3), (2, 3), (3, 1)):
            result = slice_boxes(plane, 0, most, smallest)
            large = sorted((part for part in flooded(plane) if len(part) >= smallest), key=len)
            if most == 1 or not large:
                assert result == (tight([tuple(at) for at in np.argwhere(plane)]),)
            else:  # of parts of one size any may be taken, so sizes are compared
                sizes = {tight(part): len(part) for part in large}
                wanted = sorted((len(part) for part in large), reverse=True)[:most]
                assert sorted((sizes[box] for box in result), reverse=True) == wanted


def test_two_hundred_pixels_are_counted_on_a_grid_of_512():
    assert SMALLEST_PART * 512 * 512 == 200
    plane = np.zeros((512, 512), dtype=bool)
    plane[10:20, 10:30] = True  # 200
    plane[100:110, 100:119] = True  # 190
    plane[300, 300:500] = True  # 200
    first, last = Box(z=0, y0=10, y1=20, x0=10, x1=30), Box(z=0, y0=300, y1=301, x0=300, x1=500)
    assert slice_boxes(plane, 0, 2, 200) == (first, last)
    assert slice_boxes(plane, 0, 3, 200) == (first, last)  # the third is too small
    assert slice_boxes(plane, 0, 2, 201) == (Box(z=0, y0=10, y1=301, x0=10, x1=500),)  # all are: one box


def test_kidneys_give_a_box_each_and_other_masks_one(case, tmp_path):
    rule = Rule(parts=tuple(PARTS.items()), smallest_part=0.01)  # 20 of 40 x 50 voxels
    kidneys = measure(case, ["kidneys"], tmp_path, rule)
    right, left = Box(z=5, y0=20, y1=28, x0=5, x1=15), Box(z=5, y0=20, y1=30, x0=35, x1=45)
    assert kidneys.boxes[5] == (right, left)
    assert kidneys.boxes[8] == (Box(z=8, y0=20, y1=30, x0=35, x1=45),)
    assert kidneys.areas == {z: 180 if z < 7 else 100 for z in range(3, 9)}
    item = measure(case, ["kidneys"], tmp_path)
    assert item.boxes[5] == (Box(z=5, y0=20, y1=30, x0=5, x1=45),)
    rule = Rule(parts=(("KIDNEYS", 2),), smallest_part=0.01)  # capitals make no difference
    capital = dataclasses.replace(case, masks={"Kidneys": case.masks["kidneys"]})
    assert measure(capital, ["Kidneys"], tmp_path, rule) == kidneys


def test_several_masks_are_one_target_with_a_box_of_each_and_an_empty_one_is_seen_nowhere(case, tmp_path):
    nothing = measure(case, ["bladder"], tmp_path)
    assert (nothing.areas, nothing.boxes) == ({}, {})
    both = measure(case, ["liver", "left kidney"], tmp_path)
    assert both.areas[4] == 40 + 100
    assert both.boxes[4] == (Box(z=4, y0=5, y1=9, x0=2, x1=12), Box(z=4, y0=20, y1=30, x0=35, x1=45))


def test_an_edited_mask_is_measured_again_by_the_next_process(case, tmp_path):
    cache = tmp_path / "cache"
    before = measure(case, ["stone"], cache)
    masks = dict(np.load(tmp_path / "masks.npz"))
    masks["stone"] = np.roll(masks["stone"], (3, 5, 7), axis=(0, 1, 2))
    np.savez(tmp_path / "masks.npz", **masks)
    target._cached.cache_clear()
    after = measure(case, ["stone"], cache)
    assert before.boxes == {1: (Box(z=1, y0=3, y1=4, x0=7, x1=8),)}
    assert after.boxes == {4: (Box(z=4, y0=8, y1=9, x0=14, x1=15),)}


def test_a_mask_that_cannot_be_read_is_named_with_its_case(case, tmp_path):
    gone = MaskRef(path=str(tmp_path / "none.npz"), key="liver")
    case = dataclasses.replace(case, masks={**case.masks, "liver": gone})
    with pytest.raises(DataError, match=r"none\.npz.*\(case 'c7'\)"):
        measure(case, ["liver"], tmp_path)
