"""Shapes on any voxel grid: ellipsoids and smooth noise."""

import functools
from typing import Any

import numpy as np

Volume = np.ndarray[Any, np.dtype[np.float32]]
Region = np.ndarray[Any, np.dtype[np.bool_]]
Triple = tuple[float, float, float]  # z, y, x


def level(axes_zyx: tuple[Volume, Volume, Volume], centre: Triple, radii: Triple) -> Volume:
    """Return the squared distance from `centre` in units of `radii`: below 1 inside.

    The axes z, y, x broadcast to a volume (z, y, x); all are in one unit.
    """
    z, y, x = (np.square((axis - c) / r) for axis, c, r in zip(axes_zyx, centre, radii, strict=True))
    return np.asarray(z + (y + x), dtype=np.float32)


@functools.cache
def _interpolation(cells: int, size: int) -> Volume:
    at = np.linspace(0, cells - 1, size)
    low = np.minimum(np.floor(at).astype(int), max(cells - 2, 0))
    matrix = np.zeros((size, cells), np.float32)
    matrix[np.arange(size), low] = 1 - (at - low)
    matrix[np.arange(size), np.minimum(low + 1, cells - 1)] += at - low
    return matrix


def smooth_field(
    rng: np.random.Generator, cells: tuple[int, int, int], size_zyx: tuple[int, int, int]
) -> Volume:
    """Return unit noise on a coarse grid of `cells`, interpolated to a volume of `size_zyx`."""
    coarse = rng.standard_normal(cells, dtype=np.float32)
    to_z, to_y, to_x = (_interpolation(c, n) for c, n in zip(cells, size_zyx, strict=True))
    return np.asarray(to_y @ np.tensordot(to_z, coarse, axes=1) @ to_x.T, dtype=np.float32)
