"""NIfTI files: header, checked gzip stream, voxels; a mask back onto the grid of the file of its scan."""

from __future__ import annotations

import gzip
import os
import zlib
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from isal import igzip
from isal.isal_zlib import error as isal_error
from nibabel.spatialimages import HeaderDataError
from nibabel.wrapstruct import WrapStructError

from evidcore.cache import write_atomically
from evidcore.case import VolumeRef
from evidcore.data.arrays import stated_affine
from evidcore.data.files import format_of
from evidcore.data.format import Format
from evidcore.data.grid import LPS_RAS, Array, FileGrid, Mask, Triple, Volume
from evidcore.data.placement import resample
from evidcore.data.reading import opened
from evidcore.data.stored import AGAIN, Stored, refuse_shape, refuse_type
from evidcore.errors import DataError

# what a NIfTI header says of the grid; the rest may hold names
_GRID = (
    "dim", "pixdim", "xyzt_units", "qform_code", "sform_code", "quatern_b", "quatern_c", "quatern_d",
    "qoffset_x", "qoffset_y", "qoffset_z", "srow_x", "srow_y", "srow_z",
)  # fmt: skip
SCANNER = 1  # NIfTI's code of an affine in the scanner's millimetres


def save_mask(mask: Mask, ref: VolumeRef, path: str | os.PathLike[str]) -> None:
    """Write a mask as NIfTI on the grid and axes of a scan's file, so that a viewer lays it over the file.

    A NIfTI scan's affines and codes are copied; the grid of another format is written as its affines. Where
    the scan's axes are oblique, each voxel takes the nearest of the mask; elsewhere `read_mask` gives the
    same back.

    Args:
        mask: (z, y, x), true inside, on the grid of `read(ref)`.
        ref: the scan.
        path: ends in .nii or .nii.gz; written in one move, replaced if there.
    """
    target = Path(path)
    stored, placement = opened(ref)
    if not target.name.endswith((".nii", ".nii.gz")):
        raise DataError(f"{path}: masks are saved as NIfTI. End the name in .nii.gz or .nii.")
    if mask.dtype != np.bool_ or mask.shape != placement.geometry.shape_zyx:
        raise DataError(
            f"{path}: a mask of {ref.path} is boolean with shape {placement.geometry.shape_zyx} (z, y, x), "
            f"got {mask.dtype} with shape {mask.shape}. Make it on the grid of read(ref)."
        )
    values: Array = mask.astype(np.uint8)
    if placement.is_resampled:
        values = resample(values, placement.geometry, placement.meant, order=0, outside=0.0)
    values = placement.turn.undo(values)
    content = _image(values, stored.grid.affine_ras, ref).to_bytes()
    if target.name.endswith(".gz"):
        content = gzip.compress(content, compresslevel=6, mtime=0)
    write_atomically(target, content, or_else="name a file in another folder")


def save_volume(volume: Volume, path: str | os.PathLike[str]) -> None:
    """Write voxels as NIfTI in body axes; nothing of the file they were read from but their grid is written.

    Args:
        volume: int16 or float32; its grid may be any.
        path: ends in .nii or .nii.gz; written in one move, replaced if there.
    """
    turn = np.eye(4)[[2, 1, 0, 3]]  # z, y, x to x, y, z, of indices and of places alike
    content = _of_grid(volume.array.transpose(2, 1, 0), LPS_RAS @ turn @ volume.affine @ turn).to_bytes()
    if is_packed(str(path)):
        content = igzip.compress(content, mtime=0)
    write_atomically(Path(path), content, or_else="name another folder")


def _of_grid(values: Array, affine_ras: Array) -> nib.Nifti1Image:
    image = nib.Nifti1Image(values, affine_ras)
    image.set_sform(affine_ras, SCANNER)
    image.set_qform(affine_ras, SCANNER)
    if not np.allclose(image.get_qform(), affine_ras, atol=1e-3):
        image.set_qform(None, 0)  # it cannot hold shear
    image.header.set_xyzt_units("mm")
    return image


def _image(values: Array, affine_ras: Array, ref: VolumeRef) -> nib.Nifti1Image | nib.Nifti2Image:
    """Return the values (in file order) with the affines of their scan's file."""
    if not isinstance(format_of(ref.path), Nifti):
        return _of_grid(values, affine_ras)
    source = read_header(ref.path)
    kind = nib.Nifti2Image if isinstance(source, nib.Nifti2Header) else nib.Nifti1Image
    header = kind.header_class()
    header.set_data_dtype(np.uint8)
    header.set_data_shape(source.get_data_shape())
    for field in _GRID:
        header[field] = source[field]
    return kind(values.reshape(header.get_data_shape()), None, header)


GZIP_MAGIC = b"\x1f\x8b"
HEADER_BYTES = 540  # a NIfTI-2 header; NIfTI-1 needs 348


class Nifti(Format):
    """NIfTI-1 and NIfTI-2, plain or gzip-compressed.

    The file's slope and intercept are applied, once. The gzip checksum is verified as the voxels are loaded.
    Axes and spacing of the reference take the place of the header's grid, of which nothing is then read.
    """

    takes = frozenset({"axes"})

    def open(self, ref: VolumeRef) -> Stored:
        """Read the header."""
        header = read_header(ref.path)
        affine = stated_affine(ref)
        slope, intercept = header.get_slope_inter()
        return Stored(
            grid=_grid(header, ref.path) if affine is None else FileGrid(shape=_shape(header), affine=affine),
            load=lambda: _voxels(Path(ref.path)),
            slope=1.0 if slope is None else slope,  # None: the header asks for no scaling
            intercept=intercept or 0.0,
        )


def read_header(path: str) -> Any:
    """Return the NIfTI-1 or NIfTI-2 header, of a shape that a volume can have."""
    file = Path(path)
    try:
        _refuse_packing(file)
        with gzip.open(file) if is_packed(path) else file.open("rb") as stream:
            start = stream.read(HEADER_BYTES)
    except (OSError, EOFError, zlib.error) as cause:
        raise _unreadable(file, cause) from cause
    return _header(start, path)


def is_packed(path: str) -> bool:
    """Tell whether a file's name says that it is gzip-compressed."""
    return path.lower().endswith(".gz")


def _voxels(path: Path) -> Array:
    """Return the voxels as stored, indexed as in the file."""
    payload = _payload(path)
    header = _header(payload, str(path))
    dtype = header.get_data_dtype()
    refuse_type(dtype, str(path))
    shape = header.get_data_shape()
    count, start = int(np.prod(shape)), int(header["vox_offset"])
    present = max(0, len(payload) - start)
    if present < count * dtype.itemsize:
        raise DataError(
            f"{path}: holds {present} bytes of voxels, its header promises {count * dtype.itemsize}: "
            f"the file is cut off. {AGAIN}"
        )
    return np.frombuffer(payload, dtype, count, start).reshape(shape[:3], order="F")


def _payload(path: Path) -> bytes:
    """Return the file's bytes, unpacked; the whole stream is read so that its checksum is verified."""
    try:
        _refuse_packing(path)
        content = path.read_bytes()
        return gunzip(content) if is_packed(path.name) else content
    except (OSError, EOFError, zlib.error) as cause:
        raise _unreadable(path, cause) from cause


def gunzip(content: bytes) -> bytes:
    """Unpack a gzip file, 2.5 times as fast as Python's own; verify lengths and checksums of its members."""
    try:
        unpacked: bytes = igzip.decompress(content)  # type: ignore[no-untyped-call]
    except isal_error as cause:  # type: ignore[misc]  # its stub names the class as if it were an exception
        raise zlib.error(str(cause)) from cause
    return unpacked


def _refuse_packing(path: Path) -> None:
    """Stop at a name that says something else about compression than the content."""
    with path.open("rb") as file:
        packed = file.read(2) == GZIP_MAGIC
    if packed and not is_packed(path.name):
        raise DataError(f"{path}: is named .nii but gzip-compressed. Rename it to {path.name}.gz.")
    if is_packed(path.name) and not packed:
        raise DataError(f"{path}: is named .gz but not gzip-compressed. Rename it to {path.name[:-3]}.")


def _unreadable(path: Path, cause: Exception) -> DataError:
    if isinstance(cause, EOFError):
        why = f"the gzip stream ends too early, after {path.stat().st_size} bytes"
    elif isinstance(cause, (gzip.BadGzipFile, zlib.error)):
        why = f"the gzip stream is damaged ({cause})"
    else:
        why = f"cannot be read ({cause})"
    return DataError(f"{path}: {why}. {AGAIN}")


def _header(start: bytes, path: str) -> Any:
    """Parse a NIfTI-1 or NIfTI-2 header and refuse shapes that are no volume."""
    size = {int.from_bytes(start[:4], order) for order in ("little", "big")}
    kind = nib.Nifti2Header if 540 in size else nib.Nifti1Header
    try:
        header = kind(start[: kind.sizeof_hdr])
        shape = header.get_data_shape()
        header.get_slope_inter()
    except (HeaderDataError, WrapStructError, ValueError) as cause:
        raise DataError(f"{path}: has no usable NIfTI header ({cause}). {AGAIN}") from cause
    refuse_shape(shape, path)
    return header


def _has_directions(affine: Array) -> bool:
    """Tell an affine whose axes run somewhere; of another, `turn_to_body` says what is wrong."""
    return bool(np.isfinite(affine).all() and np.linalg.norm(affine[:3, :3], axis=0).all())


def _grid(header: Any, path: str) -> FileGrid:
    """Read the orientation; refuse a file that states none, or two that contradict each other."""
    q_code, s_code = int(header["qform_code"]), int(header["sform_code"])
    if not q_code and not s_code:
        raise DataError(
            f"{path}: states no orientation (qform_code and sform_code are 0), so left and right are "
            f"unknown. Set it with nibabel: image.set_sform(affine, code=1)."
        )
    try:
        affine, turned = header.get_best_affine(), header.get_qform() if q_code else None
    except (HeaderDataError, ValueError) as cause:
        raise DataError(
            f"{path}: its qform is no rotation ({cause}). Write it again with nibabel."
        ) from cause
    if turned is not None and s_code and _has_directions(turned) and _has_directions(affine):
        names = ["".join(letter or "?" for letter in nib.aff2axcodes(form)) for form in (turned, affine)]
        if names[0] != names[1]:
            raise DataError(
                f"{path}: the header contradicts itself: qform runs to {names[0]}, sform to {names[1]}. "
                f"Find out which is true and set the other's code to 0 with nibabel."
            )
    unit = header.get_xyzt_units()[0]
    if unit not in {"mm", "unknown"}:
        raise DataError(
            f"{path}: spacings are in {unit}, expected mm: "
            f"{[round(float(step), 6) for step in header.get_zooms()[:3]]}. Write the file again in mm, "
            f"and its unit with nibabel: image.header.set_xyzt_units('mm')."
        )
    return FileGrid(shape=_shape(header), affine=LPS_RAS @ affine)


def _shape(header: Any) -> Triple:
    x, y, z = (int(count) for count in header.get_data_shape()[:3])
    return x, y, z
