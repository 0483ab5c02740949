"""Masks whose grid is a part of their volume's: put where they belong, or refused with both grids."""

from __future__ import annotations

from typing import Any

import numpy as np

from evidcore.errors import DataError
from evidcore.volume.geometry import SAME_GRID_VOXELS, Geometry

Mask = np.ndarray[Any, np.dtype[np.bool_]]


def put(mask: Mask, held: Geometry, onto: Geometry, path: str) -> Mask:
    """Return a mask on its volume's grid, of which its own is a part: fewer slices, a crop, or all of it.

    Args:
        mask: (z, y, x) on `held`.
        held: its grid, voxel on voxel of `onto` within a tenth.
        onto: the volume's grid.
        path: named in errors.

    Raises:
        DataError: if the voxels do not coincide, or some of the mask lies outside the volume.
    """
    target = np.zeros(onto.shape_zyx, dtype=np.bool_)
    put_into(target, mask, held, onto, path)
    return target


def put_into(target: Mask, mask: Mask, held: Geometry, onto: Geometry, path: str) -> None:
    """Add a mask to `target`, which lies on `onto`; see `put`."""
    moved = np.linalg.inv(onto.affine) @ held.affine
    offset = np.round(moved[:3, 3]).astype(int)
    last = np.array(held.shape_zyx) - 1
    corners = np.array([[*(last * pick), 1] for pick in np.ndindex(2, 2, 2)]).T
    off = (moved @ corners)[:3] - corners[:3] - offset[:, None]
    if np.abs(off).max() > SAME_GRID_VOXELS:
        raise DataError(
            f"{path}: the mask lies on another grid than its volume: mask {held}, volume {onto}. "
            f"Resample the mask onto the volume's grid with nearest neighbours."
        )
    start = np.clip(offset, 0, onto.shape_zyx)
    stop = np.clip(offset + held.shape_zyx, 0, onto.shape_zyx)
    inside = mask[tuple(slice(a, b) for a, b in zip(start - offset, stop - offset, strict=True))]
    whole, kept = int(mask.sum()), int(inside.sum())
    if kept < whole:
        raise DataError(
            f"{path}: {whole - kept} of {whole} voxels of the mask lie outside its volume: mask {held}, "
            f"volume {onto}. Name the whole volume, or cut the mask as the volume was cut."
        )
    target[tuple(slice(a, b) for a, b in zip(start, stop, strict=True))] |= inside
