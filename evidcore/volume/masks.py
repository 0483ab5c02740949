"""Masks on the grid of their volume."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from evidcore.case import MaskRef
from evidcore.errors import DataError, did_you_mean
from evidcore.volume.geometry import Array, Volume
from evidcore.volume.masks_csr import is_sparse, read_row
from evidcore.volume.nifti import read_values

Mask = np.ndarray[Any, np.dtype[np.bool_]]


def read_mask(ref: MaskRef, like: Volume) -> Mask:
    """Read a mask, shape (z, y, x) on the grid of `like`.

    A `.nii` or `.nii.gz` label map is turned to body axes like its volume; `label` picks a value, without it
    every value above 0 counts. A label that does not occur gives an empty mask: the object is out of the
    field of view. The arrays of an `.npz` are already (z, y, x) in body axes; `key` names one. An `.npz` that
    holds a sparse matrix is read by `masks_csr`.

    Raises:
        DataError: if the file cannot be used, or lies on another grid; names both grids.
    """
    if is_sparse(ref.path):
        return read_row(ref, like)
    if ref.path.endswith(".npz"):
        return _from_npz(ref, like)
    if ref.key is not None:
        raise DataError(
            f"{ref.path}: key {ref.key!r} needs an .npz file; pick from a label map with a label."
        )
    values, geometry = read_values(ref.path)
    if not geometry.fits(like.geometry):
        raise DataError(
            f"{ref.path}: the mask lies on another grid than its volume: mask {geometry}, "
            f"volume {like.geometry}. Resample the mask onto the volume's grid with nearest neighbours."
        )
    _refuse_fractions(values, ref.path)
    picked: Mask = values > 0 if ref.label is None else values == ref.label
    return picked


def _from_npz(ref: MaskRef, like: Volume) -> Mask:
    if not Path(ref.path).exists():
        raise DataError(f"{ref.path}: there is no such file. Check the path in the table or the recipe.")
    try:
        with Path(ref.path).open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            key = ref.key if ref.key is not None or len(arrays.files) != 1 else arrays.files[0]
            if key not in arrays.files:
                raise DataError(
                    f"{ref.path}: holds no array {key!r}.{did_you_mean(str(key), arrays.files)} "
                    f"It holds: {', '.join(arrays.files) or 'nothing'}."
                )
            values = arrays[key]
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as cause:
        raise DataError(f"{ref.path}: is not a readable .npz file ({cause}). Write it again.") from cause
    if values.shape != like.shape_zyx:
        raise DataError(
            f"{ref.path}: array {key!r} has shape {values.shape}, its volume {like.shape_zyx} (z, y, x). "
            f"Write masks on the volume's grid, in body axes."
        )
    if values.dtype.kind not in "biuf":
        raise DataError(f"{ref.path}: array {key!r} is {values.dtype}, expected booleans or whole numbers.")
    _refuse_fractions(values, ref.path)
    picked: Mask = values > 0 if ref.label is None else values == ref.label
    return picked


def _refuse_fractions(values: Array, path: str) -> None:
    """Stop at probabilities: above 0 would be taken as inside."""
    if values.dtype.kind != "f":
        return
    odd = values[(values != np.round(values)) | ~np.isfinite(values)]
    if odd.size:
        raise DataError(
            f"{path}: a mask holds whole numbers, got {float(odd[0])!r} in {odd.size} voxels. "
            f"Threshold the probabilities first."
        )
