from __future__ import annotations

import numpy as np
import pytest
from evidcore_plugin_doctor.coarse import STEP_MM, coarsen, interpolate


def test_cubes_hold_the_mean_of_their_voxels(tools):
    array = np.random.default_rng(0).normal(size=(20, 25, 30)).astype(np.float32)
    coarse = coarsen(tools.as_volume(array, (2.5, 1.0, 1.0)))
    assert coarse.shape == (10, 5, 6)
    brute = [
        [
            [array[2 * z : 2 * z + 2, 5 * y : 5 * y + 5, 5 * x : 5 * x + 5].mean() for x in range(6)]
            for y in range(5)
        ]
        for z in range(10)
    ]
    np.testing.assert_allclose(coarse.values, brute, atol=1e-5)


def test_a_slope_stays_a_slope_at_any_spacing(tools):
    spacing = (3.0, 0.7, 1.3)
    places = [(np.arange(count) + 0.5) * step for count, step in zip((20, 80, 50), spacing, strict=True)]
    z, y, x = np.meshgrid(*places, indexing="ij")
    coarse = coarsen(tools.as_volume((z + 2 * y - 3 * x).astype(np.float32), spacing))
    cube = [(np.arange(count) + 0.5) * STEP_MM for count in coarse.shape]
    z, y, x = np.meshgrid(*cube, indexing="ij")
    inner = (slice(1, -1),) * 3
    np.testing.assert_allclose(coarse.values[inner], (z + 2 * y - 3 * x)[inner], atol=1e-2)


def test_interpolation_is_numpys():
    values = np.random.default_rng(1).normal(size=(4, 7)).astype(np.float32)
    places = np.array([-1.0, 0.0, 0.3, 2.5, 5.9, 6.0, 9.0])
    expected = [np.interp(places, np.arange(7), row) for row in values]
    np.testing.assert_allclose(interpolate(values, places, 1), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("shape", "spacing"), [((3, 90, 90), (4.0, 1.0, 1.0)), ((50, 9, 9), (100.0, 5.0, 5.0))]
)
def test_what_is_no_body_has_no_coarse_grid(tools, shape, spacing):
    assert coarsen(tools.as_volume(np.zeros(shape, np.int16), spacing)) is None
