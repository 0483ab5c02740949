"""Bare arrays, `.npy` and `.npz`: what no header says, the reference must.

Sparse masks are a matrix of one row a class, the voxels of the volume along it. So M3D-Seg publishes its
masks: a scipy CSR matrix of shape (class, x * y * z), last axis fastest, whose true shape (class, x, y, z)
stands in the file name, `mask_(4, 512, 512, 265).npz`.
"""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from evidcore.case import MaskRef, VolumeRef
from evidcore.data.format import Format
from evidcore.data.grid import Array, FileGrid, Mask, Triple, Volume
from evidcore.data.masks import picked
from evidcore.data.placement import body_axes, turned_to_body
from evidcore.data.stored import Stored, refuse_shape, refuse_type, written
from evidcore.errors import DataError, did_you_mean

SPARSE = frozenset({"format.npy", "shape.npy", "data.npy", "indices.npy", "indptr.npy"})  # scipy's save_npz
_SHAPE = re.compile(r"\((\d+), ?(\d+), ?(\d+), ?(\d+)\)\.npz$")


def is_sparse(path: str) -> bool:
    """Tell whether a file holds a sparse matrix; False also where it cannot be read at all."""
    if not path.endswith(".npz") or not Path(path).is_file():
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return SPARSE.issubset(archive.namelist())
    except (OSError, zipfile.BadZipFile):
        return False


def read_row(ref: MaskRef, like: Volume) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Read the row `ref.key` of a sparse matrix as a mask (z, y, x) on the grid of `like`.

    Raises:
        DataError: if the file name states no shape, or another one than the matrix or the volume has; if
            there is no such row; or if the axes are not said.
    """
    from scipy import sparse  # 0.2 s; most masks need none

    found = _SHAPE.search(ref.path)
    if found is None:
        raise DataError(
            f"{ref.path}: the name of a sparse mask file must end in its shape, such as "
            f"mask_(4, 512, 512, 265).npz. Give it the name under which it was published."
        )
    classes, *shape = (int(count) for count in found.groups())
    matrix = sparse.csr_array(sparse.load_npz(ref.path))
    if matrix.shape != (classes, int(np.prod(shape))):
        raise DataError(
            f"{ref.path}: the name states {classes} masks of {'x'.join(map(str, shape))} voxels, the matrix "
            f"has shape {matrix.shape}. Fetch the file again."
        )
    if ref.label is not None:
        raise DataError(
            f"{ref.path}: label {ref.label} picks nothing of a sparse mask, whose rows are picked by key. "
            f"Leave the label out."
        )
    row = int(ref.key) if ref.key is not None and ref.key.isdecimal() else -1
    if not 0 <= row < classes:
        raise DataError(
            f"{ref.path}: key {ref.key!r} must be a row of the matrix, 0 to {classes - 1}. Correct the "
            f"mask's key."
        )
    mask = np.zeros(int(np.prod(shape)), np.bool_)
    held = slice(matrix.indptr[row], matrix.indptr[row + 1])
    mask[matrix.indices[held][matrix.data[held] != 0]] = True
    if ref.axes is None:
        raise DataError(
            f"{ref.path}: a sparse mask does not say where its axes run to. Set axes on the dataset, for "
            f"instance 'LPS'."
        )
    turned: np.ndarray[Any, np.dtype[np.bool_]] = turned_to_body(mask.reshape(shape), ref.axes, ref.path)
    if turned.shape != like.shape_zyx:
        raise DataError(
            f"{ref.path}: row {row} has shape {turned.shape} in body axes, its volume {like.shape_zyx} (z, "
            f"y, x). Say the same axes for both; got {ref.axes!r} for the mask."
        )
    return np.ascontiguousarray(turned)


MISTAKES = (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile)


class BareArray(Format):
    """An `.npy`, or an array of an `.npz`; leading axes of length 1 are dropped.

    The reference says where its axes run and how far apart its voxels are: the file does not. Masks are
    (z, y, x) in body axes on the volume's grid, or one row of a sparse matrix.
    """

    takes = frozenset({"axes", "key"})

    def open(self, ref: VolumeRef) -> Stored:
        """Read the shape."""
        axes, spacing_mm_zyx = _stated(ref)
        shape, dtype = _array_header(ref.path, ref.key)
        refuse_type(dtype, ref.path)
        kept = shape[_leading_ones(shape) :]
        if len(kept) != 3:
            raise DataError(
                f"{ref.path}: the array has shape {written(shape)}, expected 3 axes after leading ones of "
                f"length 1. Save one volume an array."
            )
        refuse_shape(kept, ref.path)
        cube: Triple = (kept[0], kept[1], kept[2])
        return Stored(
            grid=FileGrid(shape=cube, affine=_affine(ref, axes, spacing_mm_zyx)),
            load=lambda: read_array(ref.path, ref.key).reshape(cube),
        )

    def mask(self, ref: MaskRef, like: Volume) -> Mask:
        """Return the array that `ref.key` names, or its voxels of `ref.label`."""
        if is_sparse(ref.path):
            return read_row(ref, like)
        values, key = read_array(ref.path, ref.key), array_name(ref.path, ref.key)
        name = "the array" if key is None else f"array {key!r}"
        if ref.axes is not None and values.ndim == 3:
            values = turned_to_body(values, ref.axes, ref.path)
            name += " in body axes"
        if values.shape != like.shape_zyx:
            raise DataError(
                f"{ref.path}: {name} has shape {values.shape}, its volume {like.shape_zyx} (z, y, x). "
                f"Write masks on the volume's grid, in body axes."
            )
        refuse_type(values.dtype, ref.path)
        return picked(values, ref.label, ref.path)


def read_array(path: str, key: str | None) -> Array:
    """Return the array of an `.npy`, or that of an `.npz` which `key` names or which is its only one."""
    key = array_name(path, key)
    try:
        with Path(path).open("rb") as file:
            held: Any = np.load(file, allow_pickle=False)
            array: Array = held if key is None else held[key]
            return array
    except MISTAKES as cause:
        raise _unreadable(path, cause) from cause


def _array_header(path: str, key: str | None) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return shape and type without reading the voxels."""
    key = array_name(path, key)
    try:
        if key is None:
            with Path(path).open("rb") as file:
                return _npy_header(file)
        with zipfile.ZipFile(path) as archive, archive.open(f"{key}.npy") as file:
            return _npy_header(file)
    except MISTAKES as cause:
        raise _unreadable(path, cause) from cause


def _npy_header(file: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = npy.read_magic(file)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read(file)
    return tuple(shape), dtype


def array_name(path: str, key: str | None) -> str | None:
    """Return the name of the array in an `.npz`; None for an `.npy`."""
    if path.lower().endswith(".npy"):
        if key is not None:
            raise DataError(f"{path}: holds one array, key {key!r} names another. Leave the key out.")
        return None
    try:
        with zipfile.ZipFile(path) as archive:
            held = [name.removesuffix(".npy") for name in archive.namelist()]
    except MISTAKES as cause:
        raise _unreadable(path, cause) from cause
    name = held[0] if key is None and len(held) == 1 else key
    if name not in held:
        raise DataError(
            f"{path}: holds no array {name!r}.{did_you_mean(str(name), held)} "
            f"It holds: {', '.join(held) or 'nothing'}. Name one as key."
        )
    return name


def _unreadable(path: str, cause: Exception) -> DataError:
    return DataError(f"{path}: is not a readable {Path(path).suffix} file ({cause}). Write it again.")


def _stated(ref: VolumeRef) -> tuple[str, tuple[float, float, float]]:
    """Return axes and spacing, which a bare array does not hold."""
    missing = [name for name in ("axes", "spacing_mm_zyx") if getattr(ref, name) is None]
    if ref.axes is None or ref.spacing_mm_zyx is None:
        raise DataError(
            f"{ref.path}: a bare array does not say where it lies; {' and '.join(missing)} must be given. "
            f"Set for instance axes = 'SPL' (slices upwards, rows to posterior, columns to the left) and "
            f"spacing_mm_zyx = [3.0, 0.8, 0.8] on the data set."
        )
    return ref.axes, ref.spacing_mm_zyx


def stated_affine(ref: VolumeRef) -> Array | None:
    """Return the affine that a reference gives in place of a header's; None where it gives no axes.

    Raises:
        DataError: if it gives axes without spacing, or axes that are none.
    """
    if ref.axes is None:
        return None
    if ref.spacing_mm_zyx is None:
        raise DataError(
            f"{ref.path}: axes {ref.axes!r} take the place of the header's grid and need spacing_mm_zyx too. "
            f"Give both on the data set, or leave axes out."
        )
    return _affine(ref, ref.axes, ref.spacing_mm_zyx)


def _affine(ref: VolumeRef, axes: str, spacing_mm_zyx: tuple[float, float, float]) -> Array:
    affine = np.zeros((4, 4))
    affine[3, 3] = 1.0
    for axis, (body, sense) in enumerate(body_axes(axes, ref.path)):
        affine[body, axis] = sense * spacing_mm_zyx[2 - body]
    return affine


def _leading_ones(shape: tuple[int, ...]) -> int:
    """Return how many axes of length 1 stand before a volume's three."""
    count = 0
    while len(shape) - count > 3 and shape[count] == 1:
        count += 1
    return count
