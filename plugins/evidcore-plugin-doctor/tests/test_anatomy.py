from __future__ import annotations

import itertools

import numpy as np
import pytest
from evidcore_plugin_doctor.anatomy import find_body, misplaced
from evidcore_plugin_doctor.coarse import coarsen

from evidcore.data import Volume


def wrong_axes(volume: Volume) -> set[str]:
    coarse = coarsen(volume)
    if coarse is None:
        return set()
    body = find_body(coarse)
    return set() if body is None else set(misplaced(coarse, body))


@pytest.mark.slow
@pytest.mark.parametrize("flips", list(itertools.product([1, -1], repeat=3)))
def test_each_axis_that_runs_backwards_is_named_and_no_other(tools, flips):
    array = tools.torso(2)[tuple(slice(None, None, flip) for flip in flips)]
    wanted = {axis for axis, flip in zip("zyx", flips, strict=True) if flip < 0}
    assert wrong_axes(tools.as_volume(array)) == wanted


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40, 48))
def test_the_builds_of_healthy_patients_raise_no_alarm(tools, seed):
    array = tools.torso(seed)
    assert wrong_axes(tools.as_volume(array)) == set()
    turned = np.roll(array, -8, axis=1)  # lies elsewhere in the field of view
    assert wrong_axes(tools.as_volume(turned)) == set()


def test_a_crop_says_nothing_or_the_truth(tools):
    array, rng = tools.torso(3), np.random.default_rng(5)
    for _ in range(40):
        starts = [int(rng.integers(0, count // 2)) for count in array.shape]
        stops = [
            int(rng.integers(start + 8, count + 1)) for start, count in zip(starts, array.shape, strict=True)
        ]
        crop = array[tuple(slice(a, b) for a, b in zip(starts, stops, strict=True))]
        assert wrong_axes(tools.as_volume(crop)) == set(), (starts, stops)


def test_a_left_lung_full_of_fluid_is_not_taken_for_a_liver(tools):
    array = tools.torso(2)
    array[tools.ellipsoid(*tools.ORGANS["lung_left"])] = 15
    array[tools.ellipsoid((-5, -30, -38), (50, 42, 48))] = 50  # the heart is pushed to the right
    array[tools.ellipsoid(*tools.ORGANS["liver"])] = -80
    assert wrong_axes(tools.as_volume(array)) == set()


def test_real_chest_and_belly_lie_as_their_headers_say(real_data, tools):
    from evidcore.case import VolumeRef
    from evidcore.data import read

    volume = read(VolumeRef(path=str(real_data / "totalsegmentator/example_ct.nii.gz")))
    assert wrong_axes(volume) == set()
    flipped = tools.as_volume(volume.array[:, ::-1], volume.spacing_mm_zyx)
    assert wrong_axes(flipped) == {"y"}
