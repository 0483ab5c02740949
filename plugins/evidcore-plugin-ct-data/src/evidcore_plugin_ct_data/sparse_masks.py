"""Sparse masks as M3D-Seg publishes them: a matrix of one row a class, the voxels of the volume along it.

It is a scipy CSR matrix of shape (class, x * y * z), last axis fastest. Its true shape (class, x, y, z) is in
the file name, `mask_(4, 512, 512, 265).npz`.
"""

import re
import zipfile

import numpy as np

from evidcore.api import DataError, MaskRef
from evidcore.data import Mask, Volume, arrays
from evidcore.data.placement import turned_to_body

MEMBERS = frozenset({"format.npy", "shape.npy", "data.npy", "indices.npy", "indptr.npy"})  # scipy's save_npz
MOST_BYTES_EACH = 16  # of a voxel of the volume: an index and a value of 8 bytes
_SHAPE = re.compile(r"\((\d{1,5}), ?(\d{1,5}), ?(\d{1,5}), ?(\d{1,5})\)\.npz$")


class SparseMasks(arrays.BareArray):
    """The rows of a sparse matrix as masks, each picked by its number as key."""

    def recognises(self, path: str) -> bool:
        """Tell whether a file holds a sparse matrix; False also where it cannot be read at all."""
        try:
            return str(path).endswith(".npz") and MEMBERS.issubset(zipfile.ZipFile(path).namelist())
        except (OSError, zipfile.BadZipFile):
            return False

    def mask(self, ref: MaskRef, like: Volume) -> Mask:
        from scipy import sparse  # 0.2 s; most masks need none

        result = _SHAPE.search(ref.path)
        if result is None:
            why = "the name of a sparse mask file must end in its shape, such as mask_(4, 512, 512, 265).npz"
            raise DataError(f"{ref.path}: {why}. Give it the name under which it was published.")
        classes, *shape = (int(count) for count in result.groups())
        if ref.label is not None:
            why = f"label {ref.label} picks nothing of a sparse mask, whose rows are picked by key"
            raise DataError(f"{ref.path}: {why}. Leave the label out.")
        row = int(ref.key) if ref.key is not None and ref.key.isdecimal() else -1
        if not 0 <= row < classes:
            why = f"key {ref.key!r} must be a row of the matrix, 0 to {classes - 1}"
            raise DataError(f"{ref.path}: {why}. Correct the mask's key.")
        if ref.axes is None:
            why = "a sparse mask does not say where its axes run to"
            raise DataError(f"{ref.path}: {why}. Set axes on the dataset, for instance 'LPS'.")
        placed = turned_to_body(np.broadcast_to(np.False_, shape), ref.axes, ref.path).shape
        if placed != like.shape_zyx:
            why = f"row {row} has shape {placed} in body axes, its volume {like.shape_zyx} (z, y, x)"
            raise DataError(f"{ref.path}: {why}. Say the same axes for both; got {ref.axes!r} for the mask.")
        unpacked = sum(member.file_size for member in arrays.open_zip(ref.path).infolist())
        if unpacked > MOST_BYTES_EACH * like.array.size + (1 << 20):  # a small file may unpack to any size
            why = f"unpacks to {unpacked / 1e6:.1f} MB, its volume {like.shape_zyx} has far fewer voxels"
            raise DataError(f"{ref.path}: {why}. Fetch the file again.")
        try:
            matrix = sparse.csr_array(sparse.load_npz(ref.path))
        except (*arrays.MISTAKES, MemoryError) as cause:
            raise DataError(f"{ref.path}: holds no sparse matrix ({cause}). Fetch the file again.") from cause
        if matrix.shape != (classes, int(np.prod(shape))):
            why = f"the name states {classes} masks of {'x'.join(map(str, shape))} voxels"
            raise DataError(f"{ref.path}: {why}, the matrix has shape {matrix.shape}. Fetch the file again.")
        mask = np.zeros(like.array.size, np.bool_)
        entries = slice(matrix.indptr[row], matrix.indptr[row + 1])
        mask[matrix.indices[entries][matrix.data[entries] != 0]] = True
        return np.ascontiguousarray(turned_to_body(mask.reshape(shape), ref.axes, ref.path))
