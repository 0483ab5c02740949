"""Bare arrays, `.npy` and `.npz`: what no header says, the reference must."""

import io
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from evidcore.case import MaskRef, VolumeRef
from evidcore.data.format import Format
from evidcore.data.grid import Array, FileGrid, Mask, Triple, Volume
from evidcore.data.masks import picked
from evidcore.data.placement import body_axes, turned_to_body
from evidcore.data.stored import Stored, refuse_shape, refuse_type, written
from evidcore.errors import DataError, did_you_mean

MISTAKES = (OSError, ValueError, EOFError, KeyError, RuntimeError, zipfile.BadZipFile, zlib.error)


class BareArray(Format):
    """An `.npy`, or an array of an `.npz`; leading axes of length 1 are dropped.

    The reference says where its axes run and how far apart its voxels are: the file does not. Masks are
    (z, y, x) in body axes on the volume's grid.
    """

    takes = frozenset({"axes", "key"})

    def open(self, ref: VolumeRef) -> Stored:
        """Read the shape."""
        affine: Any = stated_affine(ref, is_bare=True)
        spatial, dtype = _header(ref.path, ref.key)
        while len(spatial) > 3 and spatial[0] == 1:
            spatial = spatial[1:]
        if len(spatial) != 3:
            why = f"the array has shape {written(spatial)}, expected 3 axes after leading ones of length 1"
            raise DataError(f"{ref.path}: {why}. Save one volume an array.")
        refuse_shape(spatial, ref.path, dtype.itemsize)
        cube: Triple = (spatial[0], spatial[1], spatial[2])
        return Stored(
            grid=FileGrid(shape=cube, affine=affine), load=lambda: read_array(ref.path, ref.key).reshape(cube)
        )

    def mask(self, ref: MaskRef, like: Volume) -> Mask:
        """Return the array that `ref.key` names, or its voxels of `ref.label`."""
        (shape, dtype), key = _header(ref.path, ref.key), array_name(ref.path, ref.key)
        refuse_shape(shape, ref.path, dtype.itemsize)
        name, outline = f"array {key!r}" if key else "the array", np.broadcast_to(np.False_, shape)
        if ref.axes is not None and len(shape) == 3:
            outline = turned_to_body(outline, ref.axes, ref.path)
            name += " in body axes"
        if outline.shape != like.shape_zyx:  # before they are loaded: a small file may unpack to any size
            why = f"{name} has shape {outline.shape}, its volume {like.shape_zyx} (z, y, x)"
            raise DataError(f"{ref.path}: {why}. Write masks on the volume's grid, in body axes.")
        values = read_array(ref.path, ref.key)
        values = values if ref.axes is None else turned_to_body(values, ref.axes, ref.path)
        return picked(values, ref.label, ref.path)


def read_array(path: str, key: str | None) -> Array:
    """Return the array of an `.npy`, or that of an `.npz` which `key` names or which is its only one."""
    array: Array = _taken(path, key, npy.read_array)
    return array


def _header(path: str, key: str | None) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return shape and type of what `read_array` gives."""
    read = {(1, 0): npy.read_array_header_1_0}  # later ones differ in the length of their header

    def take(file: IO[bytes]) -> Any:
        start = io.BytesIO(file.read(1 << 16))  # it may state any length
        return read.get(npy.read_magic(start), npy.read_array_header_2_0)(start)

    shape, _, dtype = _taken(path, key, take)
    refuse_type(dtype, path)
    return shape, dtype


def _taken(path: str, key: str | None, take: Callable[[IO[bytes]], Any]) -> Any:
    key = array_name(path, key)
    try:
        with Path(path).open("rb") if key is None else zipfile.ZipFile(path).open(f"{key}.npy") as file:
            return take(file)
    except MISTAKES as cause:
        raise _unreadable(path, cause) from cause


def array_name(path: str, key: str | None) -> str | None:
    """Return the name of the array in an `.npz`; None for an `.npy`."""
    if path.lower().endswith(".npy"):
        if key is not None:
            raise DataError(f"{path}: holds one array, key {key!r} names another. Leave the key out.")
        return None
    try:
        with open_zip(path) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist()]
    except MISTAKES as cause:
        raise _unreadable(path, cause) from cause
    name = names[0] if key is None and len(names) == 1 else key
    if name not in names:
        hint = f"{did_you_mean(str(name), names)} It holds: {', '.join(names) or 'nothing'}. Name one as key."
        raise DataError(f"{path}: holds no array {name!r}.{hint}")
    return name


def open_zip(path: str | Path) -> zipfile.ZipFile:
    """Open a zip file of which `read(size)` unpacks no more than it returns, whatever sizes it states."""
    archive = zipfile.ZipFile(path)
    for item in archive.infolist():
        if item.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:  # unpack unbounded
            raise DataError(f"{path}: {item.filename} is packed by another method than deflate. Use that.")
    return archive


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
    affine = np.diag([0.0, 0.0, 0.0, 1.0])
    for axis, (body, sense) in enumerate(body_axes(ref.axes, ref.path)):
        affine[body, axis] = sense * ref.spacing_mm_zyx[2 - body]
    return affine
