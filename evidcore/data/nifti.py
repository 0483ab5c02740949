"""NIfTI files: header, checked gzip stream, voxels; a mask back onto the grid of the file of its scan."""

import gzip
import io
import math
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
from evidcore.data.grid import LPS_RAS, Array, FileGrid, Mask, Volume
from evidcore.data.placement import TILT_LIMIT_DEGREES, is_sheared, resample
from evidcore.data.reading import opened
from evidcore.data.stored import AGAIN, MOST_BYTES, Stored, refuse_shape, refuse_type
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
    same back. The mask is (z, y, x), true inside, on the grid of `read(ref)`; the path ends in .nii or
    .nii.gz and is written in one move, replaced if there.
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
    """Write int16 or float32 voxels and their grid, nothing else, as NIfTI in body axes, in one move."""
    turn = np.eye(4)[[2, 1, 0, 3]]  # z, y, x to x, y, z, of indices and of places alike
    content = _of_grid(volume.array.transpose(2, 1, 0), LPS_RAS @ turn @ volume.affine @ turn).to_bytes()
    if str(path).lower().endswith(".gz"):
        content = igzip.compress(content, mtime=0)
    write_atomically(Path(path), content, or_else="name another folder")


def _of_grid(values: Array, affine_ras: Array) -> nib.Nifti1Image:
    image = nib.Nifti1Image(values, affine_ras)
    image.set_sform(affine_ras, SCANNER)
    # a qform holds no shear: of little it states the nearest rotation, without which ITK opens no file
    image.set_qform(*((None, 0) if is_sheared(affine_ras[:3, :3]) else (affine_ras, SCANNER)))
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
    if not source["qform_code"] and not is_sheared(affine_ras[:3, :3]):
        header.set_qform(source.get_best_affine(), int(source["sform_code"]))
    return kind(values.reshape(header.get_data_shape()), None, header)


GZIP_MAGIC = b"\x1f\x8b"
HEADER_BYTES = 540  # a NIfTI-2 header; NIfTI-1 needs 348
MOST_BEHIND = 1 << 20  # bytes behind the voxels, which some writers pad
DIFFERENT = 0.01  # of a spacing: two statements of it, however rounded, are closer


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
        slope, intercept = float(header["scl_slope"]), float(header["scl_inter"])
        is_scaled = slope != 0 and not math.isnan(slope)
        return Stored(
            grid=_grid(header, ref)
            if affine is None
            else FileGrid(shape=header.get_data_shape()[:3], affine=affine),
            load=lambda: _voxels(Path(ref.path)),
            slope=slope if is_scaled else 1.0,
            intercept=intercept if is_scaled else 0.0,
        )


def read_header(path: str) -> Any:
    """Return the NIfTI-1 or NIfTI-2 header, of a shape that a volume can have."""
    file = Path(path)
    try:
        with file.open("rb") as stream:
            is_gzip = stream.read(2) == GZIP_MAGIC
        with gzip.open(file) if is_gzip else file.open("rb") as stream:
            start = stream.read(HEADER_BYTES)
    except (OSError, EOFError, zlib.error) as cause:
        raise _unreadable(file, cause) from cause
    size = {int.from_bytes(start[:4], order) for order in ("little", "big")}
    kind = nib.Nifti2Header if 540 in size else nib.Nifti1Header
    try:
        header = kind(start[: kind.sizeof_hdr])
        shape, dtype, offset = header.get_data_shape(), header.get_data_dtype(), float(header["vox_offset"])
    except (HeaderDataError, WrapStructError, ValueError) as cause:
        raise DataError(f"{path}: has no usable NIfTI header ({cause}). {AGAIN}") from cause
    if is_gzip != path.lower().endswith(".gz"):
        what, name = ("gzip-compressed", f"{path}.gz") if is_gzip else ("not gzip-compressed", path[:-3])
        raise DataError(f"{path}: is named {file.suffix} but {what}. Rename it to {Path(name).name}.")
    refuse_shape(shape, path, dtype.itemsize)
    if not (first := kind.single_vox_offset) <= offset <= MOST_BYTES:  # before it lies the header
        raise DataError(
            f"{path}: its voxels begin at byte {offset:g} (vox_offset), expected {first}. {AGAIN}"
        )
    return header


def _voxels(path: Path) -> Array:
    """Return the voxels as stored, indexed as in the file; all of a gzip stream, to verify its checksum."""
    header = read_header(str(path))
    dtype, shape, start = header.get_data_dtype(), header.get_data_shape(), int(header["vox_offset"])
    refuse_type(dtype, str(path))
    count = math.prod(shape)
    promised = count * dtype.itemsize
    most = start + promised + MOST_BEHIND
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            # a sparse file takes no disk, and would fill the memory; packing enlarges noise a little
            content = file.read(min(size, most + most // 256))
        if path.name.lower().endswith(".gz"):
            with igzip.IGzipFile(fileobj=io.BytesIO(content)) as stream:  # type: ignore[no-untyped-call]
                content = stream.read(most + 1)  # 2.5 times as fast as Python's, and verifies as much
            size = len(content)
    except (OSError, EOFError, isal_error) as cause:  # type: ignore[misc]  # its stub calls it no exception
        raise _unreadable(path, cause) from cause
    present = max(0, size - start)
    if not promised <= present <= promised + MOST_BEHIND:
        why = "cut off" if present < promised else "not read further"
        held = f"holds {present} bytes of voxels, its header promises {promised}"
        raise DataError(f"{path}: {held}: the file is {why}. {AGAIN}")
    return np.frombuffer(content, dtype, count, start).reshape(shape[:3], order="F")


def _unreadable(path: Path, cause: Exception) -> DataError:
    fault = "ends too early" if isinstance(cause, EOFError) else "is damaged"
    is_of_system = isinstance(cause, OSError) and not isinstance(cause, gzip.BadGzipFile)
    why = "cannot be read" if is_of_system else f"the gzip stream {fault}"
    return DataError(f"{path}: {why} ({cause}). {AGAIN}")


def _grid(header: Any, ref: VolumeRef) -> FileGrid:
    """Read the orientation; refuse a file that states none, or two that contradict each other."""
    path, q_code, s_code = ref.path, int(header["qform_code"]), int(header["sform_code"])
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
    if s_code:
        _refuse_contradiction(header, affine, turned, ref)
    unit = header.get_xyzt_units()[0]
    if unit not in {"mm", "unknown"}:
        raise DataError(
            f"{path}: spacings are in {unit}, expected mm: "
            f"{[round(float(step), 6) for step in header.get_zooms()[:3]]}. Write the file again in mm, "
            f"and its unit with nibabel: image.header.set_xyzt_units('mm')."
        )
    return FileGrid(shape=header.get_data_shape()[:3], affine=LPS_RAS @ affine)


def _refuse_contradiction(header: Any, affine: Array, turned: Array | None, ref: VolumeRef) -> None:
    """Stop at an sform whose spacing or directions the qform, or without one the pixdim, does not have."""
    zooms, steps = np.array(header.get_zooms()[:3]), np.linalg.norm(affine[:3, :3], axis=0)
    if not (zooms.all() and steps.all() and np.isfinite(steps).all()):
        return  # one states nothing; `turn_to_body` says what is wrong with the sform
    forms = [affine / [*(steps / zooms), 1] if turned is None else turned, affine]
    cosines = np.einsum("ij,ij->j", forms[0][:3, :3] / zooms, affine[:3, :3] / steps)
    degrees = float(np.degrees(np.arccos(np.clip(cosines, -1, 1))).max())
    letters = ["".join(map(str, nib.aff2axcodes(form))) if np.isfinite(form).all() else "?" for form in forms]
    # codes name spaces, in which a scan may lie in two ways; shear has no qform
    is_same_space = header["qform_code"] == header["sform_code"] and not is_sheared(affine[:3, :3])
    is_turned = degrees > TILT_LIMIT_DEGREES and (is_same_space or letters[0] != letters[1])
    is_resized = ref.spacing_mm_zyx is None and not (np.abs(zooms - steps) <= DIFFERENT * steps).all()
    if is_turned or is_resized:
        sizes = [" x ".join(f"{step:.4g}" for step in form) for form in (zooms, steps)]
        raise DataError(
            f"{ref.path}: the header contradicts itself: {'pixdim' if turned is None else 'qform'} states "
            f"voxels of {sizes[0]} mm (x, y, z) that run to {letters[0]}, sform of {sizes[1]} mm to "
            f"{letters[1]}, {degrees:.1f}° apart. Find out which is true; write it into both with nibabel: "
            f"image.set_sform(affine, 1), image.set_qform(affine, 1)."
        )
