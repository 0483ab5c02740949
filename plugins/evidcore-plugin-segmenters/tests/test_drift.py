"""Figures of one mask, by hand and by brute force."""

import numpy as np
import pytest
from evidcore_plugin_segmenters.audit.drift import DISTANCES, body_of, drift, shape_of, surface_mm

from evidcore.data import Geometry, Volume


def block(shape=(9, 20, 20), z=(2, 7), y=(5, 15), x=(5, 15)):
    mask = np.zeros(shape, dtype=np.bool_)
    mask[slice(*z), slice(*y), slice(*x)] = True
    return mask


def test_dice_and_outlines_by_distance_from_the_prompt_by_hand():
    truth = block()
    result = np.zeros_like(truth)
    for z in range(2, 7):  # as far off along x as from slice 4
        off = abs(z - 4)
        result[z, 5:15, 5 + off : 15 + off] = True
    result[7, 5:15, 5:15] = True  # one slice too far
    seen = drift(result, truth, 4, (2.0, 3.0))
    assert list(DISTANCES) == ["0", "1", "2", "3-5", "6-10", "11+"]
    assert [seen[f"dice/{name}"] for name in ("0", "1", "2", "3-5")] == pytest.approx([1.0, 0.9, 0.8, 0.0])
    assert seen["dice/6-10"] is None
    both = 100 + 2 * 90 + 2 * 80
    assert seen["dice"] == pytest.approx(2 * both / (500 + 600))
    assert seen["iou"] == pytest.approx(both / (500 + 600 - both))
    assert seen["surface_mm/3-5"] is None  # no outline of the truth farther away
    assert seen["surface_mm/0"] == 0.0 < seen["surface_mm/1"] < seen["surface_mm/2"] < 6.0


def edge(region):
    """The voxels of a region that a neighbour along y or x does not belong to."""
    padded = np.pad(region, 1)
    inner = padded[:-2, 1:-1] & padded[2:, 1:-1] & padded[1:-1, :-2] & padded[1:-1, 2:]
    return np.argwhere(region & ~inner)


def brute_force_mm(item, other, spacing_mm_yx):
    first, second = (edge(region) * spacing_mm_yx for region in (item, other))
    gaps = np.linalg.norm(first[:, None] - second[None], axis=2)
    return np.concatenate([gaps.min(axis=1), gaps.min(axis=0)]).mean()


def test_the_distance_of_outlines_is_that_of_brute_force_also_at_the_edge_of_the_grid():
    dice_ = np.random.default_rng(0)
    y, x = np.mgrid[:24, :30]
    for number in range(3):
        item = ((y - 11) / (6 + number)) ** 2 + ((x - 12) / 7) ** 2 <= 1
        other = ((y - 12) / 6) ** 2 + ((x - 15) / (8 - number)) ** 2 <= 1 + 0.2 * dice_.random()
        wanted = brute_force_mm(item, other, (1.5, 0.8))
        assert surface_mm(item, other, (1.5, 0.8)) == pytest.approx(wanted, rel=1e-5)
    assert surface_mm(item, item, (1.5, 0.8)) == 0.0
    item, other = x < 3, x < 2
    assert surface_mm(item, other, (1.0, 1.0)) == pytest.approx(brute_force_mm(item, other, (1.0, 1.0)))


def test_a_mask_by_itself_by_hand():
    mask = block()
    assert shape_of(mask, [mask], None) == {
        "slice_to_slice_dice": 1, "area_leaps": 0, "splits": 0, "leaves_body": None,
    }  # fmt: skip
    half, less = mask.copy(), mask.copy()
    half[4, 10:] = False
    less[4, 9:] = False  # 40 of 100 voxels
    assert shape_of(half, [half], None)["area_leaps"] == 0.0
    assert shape_of(less, [less], None)["area_leaps"] == 1.0
    assert shape_of(half, [half], None)["slice_to_slice_dice"] == pytest.approx((1 + 2 * 2 / 3 + 1) / 4)
    single = block(z=(4, 5))
    assert shape_of(single, [single], None)["slice_to_slice_dice"] is None
    assert shape_of(single, [single], None)["area_leaps"] is None


def test_a_mask_splits_where_one_prompt_gives_several_parts():
    item, other = block(x=(2, 6)), block(x=(12, 16))
    both = item | other
    assert shape_of(both, [both], None)["splits"] == 1.0
    assert shape_of(both, [item, other], None)["splits"] == 0.0
    assert shape_of(both, [both], None, meant=[2])["splits"] == 0.0  # a mask prompt that shows both
    speck = item.copy()
    speck[8, 19, 19] = True  # less than a hundredth
    assert shape_of(speck, [speck], None)["splits"] == 0.0


def test_a_mask_leaves_the_body_from_a_hundredth_of_it_on():
    body = block(z=(0, 9), y=(0, 20), x=(0, 10))
    inside, outside = block(x=(5, 10)), block(x=(5, 11))
    assert shape_of(inside, [inside], body)["leaves_body"] == 0.0
    assert shape_of(outside, [outside], body)["leaves_body"] == 1.0
    barely = inside.copy()
    barely[2, 5:7, 10] = True  # 2 of 252 voxels
    assert shape_of(barely, [barely], body)["leaves_body"] == 0.0


def volume(intensity="hu", shape=(9, 61, 61)):
    z, y, x = np.ogrid[tuple(slice(count) for count in shape)]
    radius = np.hypot(y - 30, x - 30) + 0 * z
    hu = np.where(radius < 24, 40.0, -1000.0)
    hu[radius < 8] = -850.0  # a lung
    affine = np.diag([5.0, 1.2, 1.2, 1.0])
    return Volume(
        array=hu.astype(np.float32), geometry=Geometry(shape_zyx=shape, affine=affine), intensity=intensity
    )


def test_the_body_is_what_its_outline_encloses():
    body = body_of(volume())
    z, y, x = np.ogrid[:9, :61, :61]
    radius = np.hypot(y - 30, x - 30) + 0 * z
    assert body.shape == (9, 61, 61)
    assert body[radius < 22].all()  # the lung too
    assert not body[radius > 29].any()
    assert body_of(volume("arbitrary")) is None
