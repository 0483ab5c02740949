import numpy as np
import pytest
from evidcore_plugin_doctor.coarse import coarsen
from evidcore_plugin_doctor.likeness import AGREEMENT, BLOCK, Library, fingerprint, weakest_tenth
from scipy import ndimage
from scipy.spatial.transform import Rotation


def alike(*volumes):
    library = Library()
    for volume in volumes:
        coarse = coarsen(volume)
        library.add(None if coarse is None else fingerprint(coarse, volume.intensity))
    return list(library.alike())


@pytest.mark.slow
def test_patients_are_not_alike(tools):
    assert alike(*(tools.as_volume(tools.torso(seed)) for seed in range(50, 62))) == []


def test_a_crop_is_found_with_where_it_was_cut(tools):
    array = tools.torso(2)
    (pair,) = alike(tools.as_volume(array), tools.as_volume(array[7:50, 9:66, 11:70]))
    assert (pair.first, pair.second) == (0, 1)
    assert pair.agreement > AGREEMENT
    expected = [-7 * 6.0, -9 * 5.5, -11 * 5.0]
    np.testing.assert_allclose(pair.shift_mm, expected, atol=2.5)  # half a cube


@pytest.mark.parametrize("change", ["noise", "resampled", "scaled", "clipped"])
def test_a_changed_copy_is_found(tools, change):
    array, spacing, intensity = tools.torso(3).astype(np.float32), tools.SPACING_MM, "hu"
    if change == "noise":
        array = array + np.random.default_rng(0).normal(0, 30, array.shape)
    elif change == "resampled":
        array = ndimage.zoom(array, (1.7, 0.7, 0.9), order=1)
        spacing = tuple(np.array(spacing) * tools.SHAPE / array.shape)
    elif change == "scaled":
        array, intensity = (array + 1024) / 4095, "arbitrary"
    else:
        array = np.clip(array, -1000, 300)
    copy = tools.as_volume(array.astype(np.float32), spacing, intensity)
    (pair,) = alike(tools.as_volume(tools.torso(3)), copy)
    assert pair.agreement > AGREEMENT


@pytest.mark.parametrize("degrees", [4, 8])
def test_a_turned_copy_is_found_with_its_turn(tools, degrees):
    array, steps = tools.torso(3).astype(np.float32), np.diag(tools.SPACING_MM)
    turn = Rotation.from_euler("x", degrees, degrees=True).as_matrix()  # about the first axis, z
    matrix = np.linalg.inv(steps) @ turn @ steps
    middle = (np.array(array.shape) - 1) / 2
    turned = ndimage.affine_transform(array, matrix, middle - matrix @ middle, order=1, mode="nearest")
    (pair,) = alike(tools.as_volume(tools.torso(3)), tools.as_volume(turned))
    assert pair.agreement > AGREEMENT
    assert pair.turn_degrees == pytest.approx(degrees, abs=1.0)


def test_a_mirrored_copy_shows_another_body(tools):
    array = tools.torso(2)
    assert alike(tools.as_volume(array), tools.as_volume(np.ascontiguousarray(array[:, :, ::-1]))) == []


def test_a_part_smaller_than_half_is_passed_over(tools):
    array = tools.torso(2)
    assert alike(tools.as_volume(array[:34]), tools.as_volume(array[26:])) == []


@pytest.mark.parametrize("array", [np.zeros((30, 30, 30), np.int16), np.zeros((4, 30, 30), np.int16)])
def test_what_shows_nothing_is_like_nothing(tools, array):
    assert alike(tools.as_volume(array), tools.as_volume(array)) == []


def test_the_weakest_tenth_is_that_of_a_loop_over_blocks():
    rng = np.random.default_rng(0)
    ours = rng.normal(0, 60, (2 * BLOCK + 3, 3 * BLOCK, BLOCK)).astype(np.float32)
    theirs = (
        ours + rng.normal(0, 1, ours.shape).astype(np.float32) * np.linspace(0, 90, 3 * BLOCK)[None, :, None]
    )
    ours[:BLOCK, :BLOCK], theirs[:BLOCK, :BLOCK] = 1, -1  # without structure
    result = []
    for z in range(2):
        for y in range(3):
            at = (slice(z * BLOCK, (z + 1) * BLOCK), slice(y * BLOCK, (y + 1) * BLOCK))
            a, b = ours[at].ravel(), theirs[at].ravel()
            if (z, y) != (0, 0):
                result.append(float(a @ b / np.sqrt((a @ a) * (b @ b))))
    assert weakest_tenth(ours, theirs) == pytest.approx(np.quantile(result, 0.1), abs=1e-4)
    assert weakest_tenth(ours * 0, theirs * 0) == 0


def test_bodies_of_one_build_are_not_copies(tools):
    first, second = tools.torso(3), tools.torso(3, tissue=1)
    assert np.corrcoef(first.ravel(), second.ravel())[0, 1] > 0.95
    assert alike(tools.as_volume(first), tools.as_volume(second)) == []
