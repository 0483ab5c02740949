"""Read MetaImage files, .mha: lines `key = value`, then the voxels, plain or packed by zlib."""

import zlib
from pathlib import Path

import numpy as np

from evidcore.api import DataError, Format, VolumeRef

TYPES = {
    "MET_CHAR": "i1", "MET_UCHAR": "u1", "MET_SHORT": "i2", "MET_USHORT": "u2",
    "MET_INT": "i4", "MET_UINT": "u4", "MET_FLOAT": "f4", "MET_DOUBLE": "f8",
}  # fmt: skip
LAST = b"ElementDataFile = LOCAL\n"  # the voxels follow it


class MetaImage(Format):
    """MetaImage with its voxels in the same file; ITK's axes are those of DICOM."""

    def open(self, ref: VolumeRef) -> Format.Stored:
        """Read the header."""
        fields, start = header(ref.path)
        try:
            shape = tuple(int(count) for count in fields["DimSize"].split())
            x, y, z = shape
            affine = np.eye(4)
            directions = np.array(fields["TransformMatrix"].split(), float).reshape(3, 3)  # a row an axis
            affine[:3, :3] = directions.T * np.array(fields["ElementSpacing"].split(), float)
            affine[:3, 3] = np.array(fields["Offset"].split(), float)
            order = ">" if fields.get("BinaryDataByteOrderMSB") == "True" else "<"
            dtype = np.dtype(order + TYPES[fields["ElementType"]])
        except (KeyError, ValueError) as cause:
            raise DataError(
                f"{ref.path}: has no usable MetaImage header ({cause}). Write it again."
            ) from cause
        packed = fields.get("CompressedData") == "True"
        grid = self.FileGrid(shape=(x, y, z), affine=affine)
        return self.Stored(grid=grid, load=lambda: voxels(ref.path, start, packed, dtype, (x, y, z)))


def header(path: str) -> tuple[dict[str, str], int]:
    """Return the fields of the header, and where the voxels start."""
    with Path(path).open("rb") as file:
        head, last, _ = file.read(1 << 16).partition(LAST)
    if not last:
        raise DataError(f"{path}: has no line {LAST.decode().strip()!r} in its header. Write it as one .mha.")
    lines = (line.partition("=") for line in head.decode(errors="replace").splitlines())
    return {key.strip(): value.strip() for key, _, value in lines}, len(head + last)


def voxels(path: str, start: int, packed: bool, dtype: np.dtype, shape: tuple[int, int, int]) -> np.ndarray:
    """Return the voxels, x running fastest."""
    content = Path(path).read_bytes()[start:]
    try:
        held = zlib.decompress(content) if packed else content
        return np.frombuffer(held, dtype).reshape(shape, order="F")
    except (zlib.error, ValueError) as cause:
        raise DataError(f"{path}: its voxels cannot be read ({cause}). Write it again.") from cause
