"""A volume on a coarse grid of equal steps: where bodies, organs and copies are looked for."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import ndimage

from evidcore.data import Volume

STEP_MM = 5.0
Grid = np.ndarray[Any, np.dtype[np.float32]]
_EXTENT_MM = 3000.0  # nobody is larger; a wrong spacing must not fill the memory
_FEWEST_MM = 3 * STEP_MM


def coarsen(volume: Volume) -> Grid | None:
    """Return mean values in cubes of `STEP_MM`, (z, y, x), beginning at the corner of the first voxel.

    None where the volume is too thin for them, or too large to be a body.
    """
    steps_mm = np.array(volume.spacing_mm_zyx)
    extents_mm = steps_mm * volume.shape_zyx
    if extents_mm.min() < _FEWEST_MM or extents_mm.max() > _EXTENT_MM:
        return None
    merged = merged_pixels(volume.spacing_mm_zyx)
    scale = STEP_MM / (steps_mm * merged)
    shape = tuple(np.floor(extents_mm / STEP_MM).astype(int))
    cubes: Grid = ndimage.affine_transform(  # linear; beyond the ends the end value holds
        block_means(volume.array, merged), scale, scale / 2 - 0.5, shape, order=1, mode="nearest"
    )
    return cubes


def merged_pixels(steps_mm: Sequence[float]) -> list[int]:
    """Return how many voxels along each axis are merged so that they stay within `STEP_MM`."""
    return [max(1, int(STEP_MM / step + 1e-6)) for step in steps_mm]


def block_means(values: np.ndarray[Any, Any], counts: Sequence[int]) -> Grid:
    """Average blocks of so many voxels along each axis; what does not fill a last block is left out."""
    groups = [size // count for size, count in zip(values.shape, counts, strict=True)]
    pairs = list(zip(groups, counts, strict=True))
    whole = values[tuple(slice(group * count) for group, count in pairs)]
    blocks = whole.reshape([length for pair in pairs for length in pair])
    means: Grid = blocks.mean(axis=tuple(range(1, blocks.ndim, 2)), dtype=np.float32)
    return means
