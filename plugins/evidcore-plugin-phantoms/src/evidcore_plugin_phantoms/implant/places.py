"""Where a lesion may lie: aerated lung, soft tissue, or inside a mask."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from scipy import ndimage

from evidcore.data import Volume

Array = np.ndarray[Any, np.dtype[Any]]
Region = np.ndarray[Any, np.dtype[np.bool_]]

AERATED_HU = -400.0  # below: air or lung
LUMEN_HU = -950.0  # below, in means over 2 mm: an airway's lumen, a bulla, bowel gas
LUNG_MEDIAN_HU = (-930.0, -550.0)  # of a whole lung; gas in the bowel lies below
LEAST_LUNG_ML = 30.0
VESSELS_MM = 4.0  # vessels up to about twice this across count as lung
SOFT_HU = (0.0, 120.0)  # smoothed: neither fat nor bone
SMOOTH_MM = 2.0
LEAST_SOFT_ML = 10.0
MASK_HU = {"lung": (-1000.0, -400.0), "soft": (-50.0, 250.0)}


def tissue_of(kind: Literal["lung", "soft"], blocks: Volume, body: Region) -> Region:
    """Return the blocks (`body.coarse`) of a tissue in a body (`body.outline`), shape (z, y, x)."""
    return _lung(blocks, body) if kind == "lung" else _soft(blocks, body)


def tissue_in_mask(kind: Literal["lung", "soft"], blocks: Volume, filled: Array) -> Region:
    """Return the blocks that a mask fills whole (`filled` near 1) and whose density is that of the tissue."""
    low, high = MASK_HU[kind]
    return np.asarray((filled > 0.999) & (blocks.array > low) & (blocks.array < high))


def _lung(blocks: Volume, body: Region) -> Region:
    """Return what is aerated inside the body, connected and of a lung's density, with the vessels in it."""
    inside = np.stack([ndimage.binary_fill_holes(plane) for plane in body])
    labels, _ = ndimage.label(inside & (blocks.array < AERATED_HU))
    lung = np.zeros(labels.shape, bool)
    for number in np.flatnonzero(_sizes_ml(labels, blocks) >= LEAST_LUNG_ML):
        part = labels == number
        if LUNG_MEDIAN_HU[0] < np.median(blocks.array[part]) < LUNG_MEDIAN_HU[1]:
            lung |= part
    lung &= blocks.array > LUMEN_HU
    if not lung.any():
        return lung
    spacing = blocks.spacing_mm_zyx
    reach = [max(1, round(VESSELS_MM / step)) for step in spacing]
    axes = (np.arange(-each, each + 1) * step for each, step in zip(reach, spacing, strict=True))
    squares = sum(np.square(axis) for axis in np.meshgrid(*axes, indexing="ij"))
    ball = np.asarray(squares <= max(VESSELS_MM, *spacing) ** 2)
    padded = np.pad(ndimage.binary_dilation(lung, ball), [(each, each) for each in reach], mode="edge")
    closed = ndimage.binary_erosion(padded, ball)
    inner = tuple(slice(each, -each) for each in reach)
    return np.asarray(lung | (closed[inner] & (blocks.array > LUMEN_HU)))


def _soft(blocks: Volume, body: Region) -> Region:
    low, high = SOFT_HU
    sigma = [SMOOTH_MM / step for step in blocks.spacing_mm_zyx]
    smooth = ndimage.gaussian_filter(blocks.array, sigma)  # noise alone must not make holes
    labels, _ = ndimage.label(body & (smooth >= low) & (smooth <= high))
    return np.asarray((_sizes_ml(labels, blocks) >= LEAST_SOFT_ML)[labels])


def room_mm(region: Region, spacing_mm_zyx: tuple[float, float, float]) -> Array:
    """Return how far each block lies from all that is not of the region; beyond the grid nothing is."""
    room = np.zeros(region.shape)
    if not region.any():
        return room
    held = [np.flatnonzero(region.any(axis=tuple({0, 1, 2} - {axis}))) for axis in range(3)]
    box = tuple(slice(int(places[0]), int(places[-1]) + 1) for places in held)
    padded = np.pad(region[box], 1)
    distance = ndimage.distance_transform_edt(padded, sampling=spacing_mm_zyx)[1:-1, 1:-1, 1:-1]
    # the centre of the nearest other block is known, not its edge
    room[box] = np.maximum(distance - np.max(spacing_mm_zyx) / 2, 0.0)
    return room


def room_beside(
    room: Array, spacing_mm_zyx: tuple[float, float, float], centre_mm: Array, radius_mm: float
) -> Array:
    """Return the room that is left beside a ball; its centre is in mm from the first block's."""
    axes = [np.arange(count) * step for count, step in zip(room.shape, spacing_mm_zyx, strict=True)]
    z, y, x = (np.square(axis - at) for axis, at in zip(axes, centre_mm, strict=True))
    distance = np.sqrt(z[:, None, None] + y[None, :, None] + x[None, None, :]) - radius_mm
    return np.asarray(np.clip(room, 0.0, np.maximum(distance, 0.0)))


def _sizes_ml(labels: Array, blocks: Volume) -> Array:
    """Return the size of each connected piece by its label; 0 of what is no piece."""
    sizes = np.bincount(labels.reshape(-1)) * (float(np.prod(blocks.spacing_mm_zyx)) / 1000)
    sizes[0] = 0
    return np.asarray(sizes)
