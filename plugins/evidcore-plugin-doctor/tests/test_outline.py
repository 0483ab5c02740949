from __future__ import annotations

import numpy as np
import pytest
from evidcore_plugin_doctor.outline import better_turn


@pytest.mark.parametrize(("axis", "name"), [(0, "z"), (1, "y"), (2, "x")])
def test_a_mirrored_mask_is_told_by_the_axis(tools, axis, name):
    mask = tools.ellipsoid((-60, 30, 70), (40, 25, 30))
    array = np.where(mask, 120, 20) + np.random.default_rng(0).normal(0, 8, tools.SHAPE)
    volume = tools.as_volume(array.astype(np.int16))
    assert better_turn(volume, mask) is None
    assert f"with {name} mirrored it does" in str(better_turn(volume, np.flip(mask, axis)))


def test_exchanged_axes_of_a_square_slice_are_told(tools):
    mask = np.zeros((20, 64, 64), bool)
    mask[5:15, 8:20, 30:50] = True
    array = np.where(mask, 300, 100) + np.random.default_rng(0).normal(0, 8, mask.shape)
    volume = tools.as_volume(array.astype(np.float32), (2.0, 1.0, 1.0), "arbitrary")
    assert better_turn(volume, mask) is None
    assert "with x and y exchanged it does" in str(better_turn(volume, mask.transpose(0, 2, 1)))


def test_an_object_that_does_not_show_says_nothing(tools):
    mask = tools.ellipsoid((-60, 30, 70), (40, 25, 30))
    noise = np.random.default_rng(0).normal(40, 12, tools.SHAPE).astype(np.int16)
    for turned in (mask, mask[::-1], mask[:, :, ::-1]):
        assert better_turn(tools.as_volume(noise), turned) is None


def test_a_mask_of_few_voxels_says_nothing(tools):
    mask = np.zeros(tools.SHAPE, bool)
    mask[3, 4, 5:8] = True
    assert better_turn(tools.as_volume(tools.torso(1)), mask) is None
