"""A volume on a coarse grid of equal steps: where bodies, organs and copies are looked for."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from evidcore.data import Volume

STEP_MM = 5.0
Grid = np.ndarray[Any, np.dtype[np.float32]]
Places = np.ndarray[Any, np.dtype[np.floating[Any]]]
_EXTENT_MM = 3000.0  # nobody is larger; a wrong spacing must not fill the memory
_FEWEST_MM = 3 * STEP_MM


def coarsen(volume: Volume) -> Grid | None:
    """Return mean values in cubes of `STEP_MM`, (z, y, x), beginning at the corner of the first voxel.

    None where the volume is too thin for them, or too large to be a body.
    """
    extents_mm = [count * step for count, step in zip(volume.shape_zyx, volume.spacing_mm_zyx, strict=True)]
    if not all(_FEWEST_MM <= extent <= _EXTENT_MM for extent in extents_mm):
        return None
    values = volume.array
    for axis, (extent, step) in enumerate(zip(extents_mm, volume.spacing_mm_zyx, strict=True)):
        merged = max(1, math.floor(STEP_MM / step + 1e-6))
        values = merge(values, axis, merged)
        places = (np.arange(math.floor(extent / STEP_MM)) + 0.5) * STEP_MM / (step * merged) - 0.5
        values = interpolate(values, places, axis)
    return np.ascontiguousarray(values, dtype=np.float32)


def interpolate(values: Grid, places: Places, axis: int) -> Grid:
    """Take `values` at fractional indices along one axis, linearly; beyond the ends the end value holds."""
    last = values.shape[axis] - 1
    places = np.clip(places, 0, last)
    before = np.minimum(np.floor(places).astype(np.intp), max(last - 1, 0))
    share = (places - before).astype(np.float32)
    share = share.reshape([-1 if index == axis else 1 for index in range(values.ndim)])
    low = values.take(before, axis).astype(np.float32)
    mixed: Grid = low + share * (values.take(np.minimum(before + 1, last), axis) - low)
    return mixed


def merge(values: np.ndarray[Any, Any], axis: int, count: int) -> np.ndarray[Any, Any]:
    """Average each `count` neighbours along an axis; what does not fill a last group is left out."""
    if count == 1:
        return values
    groups = values.shape[axis] // count
    at = (slice(None),) * axis
    total: np.ndarray[Any, Any] = values[(*at, slice(0, groups * count, count))].astype(np.float32)
    for offset in range(1, count):
        total += values[(*at, slice(offset, groups * count, count))]
    total /= count
    return total
