"""Bare arrays, `.npy` and `.npz`: what no header says, the reference must."""

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

MISTAKES = (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile)


class BareArray(Format):
    """An `.npy`, or an array of an `.npz`; leading axes of length 1 are dropped.

    The reference says where its axes run and how far apart its voxels are: the file does not. Masks are
    (z, y, x) in body axes on the volume's grid.
    """

    takes = frozenset({"axes", "key"})

    def open(self, ref: VolumeRef) -> Stored:
        """Read the shape."""
        affine: Any = stated_affine(ref, is_bare=True)
        key = array_name(ref.path, ref.key)
        try:
            opened = Path(ref.path).open if key is None else zipfile.ZipFile(ref.path).open
            with opened("rb" if key is None else f"{key}.npy") as file:
                first = npy.read_magic(file) == (1, 0)
                shape, _, dtype = (npy.read_array_header_1_0 if first else npy.read_array_header_2_0)(file)
        except MISTAKES as cause:
            raise _unreadable(ref.path, cause) from cause
        refuse_type(dtype, ref.path)
        spatial = tuple(shape)
        while len(spatial) > 3 and spatial[0] == 1:
            spatial = spatial[1:]
        if len(spatial) != 3:
            raise DataError(
                f"{ref.path}: the array has shape {written(shape)}, expected 3 axes after leading ones of "
                f"length 1. Save one volume an array."
            )
        refuse_shape(spatial, ref.path, dtype.itemsize)
        cube: Triple = (spatial[0], spatial[1], spatial[2])
        return Stored(
            grid=FileGrid(shape=cube, affine=affine), load=lambda: read_array(ref.path, ref.key).reshape(cube)
        )

    def mask(self, ref: MaskRef, like: Volume) -> Mask:
        """Return the array that `ref.key` names, or its voxels of `ref.label`."""
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
            loaded: Any = np.load(file, allow_pickle=False)
            array: Array = loaded if key is None else loaded[key]
            return array
    except MISTAKES as cause:
        raise _unreadable(path, cause) from cause


def array_name(path: str, key: str | None) -> str | None:
    """Return the name of the array in an `.npz`; None for an `.npy`."""
    if path.lower().endswith(".npy"):
        if key is not None:
            raise DataError(f"{path}: holds one array, key {key!r} names another. Leave the key out.")
        return None
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist()]
    except MISTAKES as cause:
        raise _unreadable(path, cause) from cause
    name = names[0] if key is None and len(names) == 1 else key
    if name not in names:
        raise DataError(
            f"{path}: holds no array {name!r}.{did_you_mean(str(name), names)} "
            f"It holds: {', '.join(names) or 'nothing'}. Name one as key."
        )
    return name


def _unreadable(path: str, cause: Exception) -> DataError:
    return DataError(f"{path}: is not a readable {Path(path).suffix} file ({cause}). Write it again.")


def stated_affine(ref: VolumeRef, *, is_bare: bool = False) -> Array | None:
    """Return the affine that a reference gives in place of a header's; None where it gives no axes.

    Of a bare array it must give one.
    """
    if ref.axes is None and not is_bare:
        return None
    if ref.axes is None or ref.spacing_mm_zyx is None:
        missing = [name for name in ("axes", "spacing_mm_zyx") if getattr(ref, name) is None]
        why = "a bare array does not say where it lies"
        why = why if is_bare else f"axes {ref.axes!r} take the place of the header's grid"
        raise DataError(
            f"{ref.path}: {why}; {' and '.join(missing)} must be given. Set for instance axes = 'SPL' "
            f"(slices upwards, rows to posterior, columns to the left) and spacing_mm_zyx = [3.0, 0.8, 0.8] "
            f"on the data set."
        )
    affine = np.zeros((4, 4))
    affine[3, 3] = 1.0
    for axis, (body, sense) in enumerate(body_axes(ref.axes, ref.path)):
        affine[body, axis] = sense * ref.spacing_mm_zyx[2 - body]
    return affine
