"""Sparse masks as M3D-Seg publishes them: a matrix of one row a class, the voxels of the volume along it.

It is a scipy CSR matrix of shape (class, x * y * z), last axis fastest. Its true shape (class, x, y, z) is in
the file name, `mask_(4, 512, 512, 265).npz`.
"""

import re
import zipfile
from pathlib import Path

import numpy as np

from evidcore.api import DataError, MaskRef
from evidcore.data import Mask, Volume
from evidcore.data.arrays import BareArray
from evidcore.data.placement import turned_to_body

MEMBERS = frozenset({"format.npy", "shape.npy", "data.npy", "indices.npy", "indptr.npy"})  # scipy's save_npz
MOST_BYTES_EACH = 16  # of a voxel of the volume: an index and a value of 8 bytes
_SHAPE = re.compile(r"\((\d+), ?(\d+), ?(\d+), ?(\d+)\)\.npz$")


class SparseMasks(BareArray):
    """The rows of a sparse matrix as masks, each picked by its number as key."""

    def recognises(self, path: str) -> bool:
        """Tell whether a file holds a sparse matrix; False also where it cannot be read at all."""
        if Path(path).suffix != ".npz" or not Path(path).is_file():
            return False
        try:
            with zipfile.ZipFile(path) as archive:
                return MEMBERS.issubset(archive.namelist())
        except (OSError, zipfile.BadZipFile):
            return False

    def mask(self, ref: MaskRef, like: Volume) -> Mask:
        """Return the row `ref.key`."""
        from scipy import sparse  # 0.2 s; most masks need none

        result = _SHAPE.search(ref.path)
        if result is None:
            raise DataError(
                f"{ref.path}: the name of a sparse mask file must end in its shape, such as "
                f"mask_(4, 512, 512, 265).npz. Give it the name under which it was published."
            )
        classes, *shape = (int(count) for count in result.groups())
        with zipfile.ZipFile(ref.path) as archive:
            unpacked = sum(member.file_size for member in archive.infolist())
        if unpacked > MOST_BYTES_EACH * like.array.size + (1 << 20):  # a small file may unpack to any size
            why = f"unpacks to {unpacked / 1e6:.1f} MB, its volume {like.shape_zyx} has far fewer voxels"
            raise DataError(f"{ref.path}: {why}. Fetch the file again.")
        matrix = sparse.csr_array(sparse.load_npz(ref.path))
        if matrix.shape != (classes, int(np.prod(shape))):
            raise DataError(
                f"{ref.path}: the name states {classes} masks of {'x'.join(map(str, shape))} voxels, the "
                f"matrix has shape {matrix.shape}. Fetch the file again."
            )
        if ref.label is not None:
            raise DataError(
                f"{ref.path}: label {ref.label} picks nothing of a sparse mask, whose rows are picked by "
                f"key. Leave the label out."
            )
        row = int(ref.key) if ref.key is not None and ref.key.isdecimal() else -1
        if not 0 <= row < classes:
            raise DataError(
                f"{ref.path}: key {ref.key!r} must be a row of the matrix, 0 to {classes - 1}. Correct the "
                f"mask's key."
            )
        if ref.axes is None:
            raise DataError(
                f"{ref.path}: a sparse mask does not say where its axes run to. Set axes on the dataset, for "
                f"instance 'LPS'."
            )
        mask = np.zeros(int(np.prod(shape)), np.bool_)
        entries = slice(matrix.indptr[row], matrix.indptr[row + 1])
        mask[matrix.indices[entries][matrix.data[entries] != 0]] = True
        turned: Mask = turned_to_body(mask.reshape(shape), ref.axes, ref.path)
        if turned.shape != like.shape_zyx:
            raise DataError(
                f"{ref.path}: row {row} has shape {turned.shape} in body axes, its volume {like.shape_zyx} "
                f"(z, y, x). Say the same axes for both; got {ref.axes!r} for the mask."
            )
        return np.ascontiguousarray(turned)
