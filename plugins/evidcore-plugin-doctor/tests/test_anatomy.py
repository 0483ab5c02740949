import itertools

import numpy as np
import pytest
import torch
from evidcore_plugin_doctor.anatomy import find_body, misplaced
from evidcore_plugin_doctor.coarse import STEP_MM, coarsen
from evidcore_plugin_doctor.masks import better_turn

from evidcore.data import Volume


def wrong_axes(volume: Volume) -> set[str]:
    coarse = coarsen(volume)
    body = None if coarse is None else find_body(coarse)
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
        starts = rng.integers(0, np.array(array.shape) // 2)
        stops = rng.integers(starts + 8, np.array(array.shape) + 1)
        crop = array[tuple(map(slice, starts, stops))]
        assert wrong_axes(tools.as_volume(crop)) == set(), (starts, stops)


def test_a_left_lung_full_of_fluid_is_not_taken_for_a_liver(tools):
    array = tools.torso(2)
    array[tools.ellipsoid(*tools.ORGANS["lung_left"])] = 15
    array[tools.ellipsoid((-5, -30, -38), (50, 42, 48))] = 50  # the heart is pushed to the right
    array[tools.ellipsoid(*tools.ORGANS["liver"])] = -80
    assert wrong_axes(tools.as_volume(array)) == set()


def test_real_chest_and_belly_lie_as_their_headers_say(real_data, tools):
    from evidcore.api import VolumeRef, read

    volume = read(VolumeRef(path=str(real_data / "totalsegmentator/example_ct.nii.gz")))
    assert wrong_axes(volume) == set()
    flipped = tools.as_volume(volume.array[:, ::-1], volume.spacing_mm_zyx)
    assert wrong_axes(flipped) == {"y"}


def test_cubes_hold_the_mean_of_their_voxels(tools):
    array = np.random.default_rng(0).normal(size=(20, 25, 30)).astype(np.float32)
    coarse = coarsen(tools.as_volume(array, (2.5, 1.0, 1.0)))
    assert coarse.shape == (10, 5, 6)
    expected = torch.nn.functional.avg_pool3d(torch.tensor(array)[None], (2, 5, 5))[0]
    np.testing.assert_allclose(coarse, expected, atol=1e-5)


def test_a_slope_stays_a_slope_at_any_spacing(tools):
    spacing = (3.0, 0.7, 1.3)
    places = [(np.arange(count) + 0.5) * step for count, step in zip((20, 80, 50), spacing, strict=True)]
    z, y, x = np.meshgrid(*places, indexing="ij")
    coarse = coarsen(tools.as_volume((z + 2 * y - 3 * x).astype(np.float32), spacing))
    cube = [(np.arange(count) + 0.5) * STEP_MM for count in coarse.shape]
    z, y, x = np.meshgrid(*cube, indexing="ij")
    inner = (slice(1, -1),) * 3
    np.testing.assert_allclose(coarse[inner], (z + 2 * y - 3 * x)[inner], atol=1e-2)


@pytest.mark.parametrize(
    ("shape", "spacing"), [((3, 90, 90), (4.0, 1.0, 1.0)), ((50, 9, 9), (100.0, 5.0, 5.0))]
)
def test_what_is_no_body_has_no_coarse_grid(tools, shape, spacing):
    assert coarsen(tools.as_volume(np.zeros(shape, np.int16), spacing)) is None


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


def test_an_object_that_does_not_show_and_a_mask_of_few_voxels_say_nothing(tools):
    mask = tools.ellipsoid((-60, 30, 70), (40, 25, 30))
    noise = np.random.default_rng(0).normal(40, 12, tools.SHAPE).astype(np.int16)
    for turned in (mask, mask[::-1], mask[:, :, ::-1]):
        assert better_turn(tools.as_volume(noise), turned) is None
    few = np.zeros(tools.SHAPE, bool)
    few[3, 4, 5:8] = True
    assert better_turn(tools.as_volume(tools.torso(1)), few) is None
