"""NIfTI files to volumes in body axes."""

from __future__ import annotations

import gzip
import io
import zlib
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from nibabel.spatialimages import HeaderDataError
from nibabel.wrapstruct import WrapStructError

from evidcore.case import VolumeRef
from evidcore.errors import DataError
from evidcore.volume.geometry import Array, Geometry, Triple, Turn, Volume, turn_to_body
from evidcore.volume.gunzip import gunzip

GZIP_MAGIC = b"\x1f\x8b"
HEADER_BYTES = 540  # a NIfTI-2 header; NIfTI-1 needs 348
AGAIN = "Copy or convert the file again."


def read(ref: VolumeRef) -> Volume:
    """Read a `.nii` or `.nii.gz` file of any axis-aligned orientation.

    The header's slope and intercept are applied, once. The gzip checksum is verified.

    Raises:
        DataError: if the file cannot be used; names it, the value and what to do.
    """
    array, geometry = read_values(ref.path)
    if array.dtype.kind == "f":
        _refuse_not_finite(array, ref.path)
    array.setflags(write=False)
    return Volume(array=array, geometry=geometry, intensity=ref.intensity)


def read_geometry(ref: VolumeRef) -> Geometry:
    """Read the grid of a volume from its header alone."""
    path = _existing(ref.path)
    _refuse_packing(path)
    try:
        with gzip.open(path) if path.name.endswith(".gz") else path.open("rb") as file:
            start = file.read(HEADER_BYTES)
    except (OSError, EOFError, zlib.error) as cause:
        raise _unreadable(path, cause) from cause
    return _turn(_header(start, ref.path), ref.path).geometry


def read_values(path: str) -> tuple[Array, Geometry]:
    """Return the scaled values in body axes: int16 where they are whole numbers that fit, else float32."""
    payload = _payload(_existing(path))
    header = _header(payload, path)
    turn = _turn(header, path)
    dtype = header.get_data_dtype()
    if dtype.kind not in "iuf":
        raise DataError(
            f"{path}: voxels are {dtype}, expected one real number each. Save it as int16 or float32."
        )
    shape = header.get_data_shape()
    count, start = int(np.prod(shape)), int(header["vox_offset"])
    held = max(0, len(payload) - start)
    if held < count * dtype.itemsize:
        raise DataError(
            f"{path}: holds {held} bytes of voxels, its header promises {count * dtype.itemsize}: "
            f"the file is cut off. {AGAIN}"
        )
    raw = np.frombuffer(payload, dtype, count, start).reshape(shape[:3], order="F")
    return np.ascontiguousarray(turn.apply(_scaled(raw, header))), turn.geometry


def _scaled(raw: Array, header: Any) -> Array:
    """Apply slope and intercept; whole numbers stay int16, half the memory of float32."""
    stated = header.get_slope_inter()
    slope, intercept = (1.0, 0.0) if stated[0] is None else stated  # None: the header asks for no scaling
    if raw.dtype.kind in "iu" and slope == 1 and float(intercept).is_integer():
        low, high = int(raw.min()) + int(intercept), int(raw.max()) + int(intercept)
        limits = np.iinfo(np.int16)
        if limits.min <= low and high <= limits.max:
            wide = raw.astype(np.int64) if intercept else raw  # raw alone may be too narrow for the sum
            return (wide + int(intercept)).astype(np.int16)
    with np.errstate(over="ignore"):  # values beyond float32 become infinite and are refused by name
        if slope == 1 and not intercept:
            return raw.astype(np.float32)
        return (raw.astype(np.float64) * slope + intercept).astype(np.float32)


def _existing(path: str) -> Path:
    """Return `path` where it names a file that may be NIfTI."""
    file = Path(path)
    if not path.endswith((".nii", ".nii.gz")):
        suffix = "".join(file.suffixes[-2:]) or "none"
        raise DataError(
            f"{path}: the file name must end in .nii or .nii.gz, got {suffix!r}. "
            f"Convert DICOM with dcm2niix; other formats with SimpleITK."
        )
    if not file.exists():
        raise DataError(f"{path}: there is no such file. Check the path in the table or the recipe.")
    if not file.is_file():
        raise DataError(f"{path}: is a folder, expected a file. Name the .nii.gz inside it.")
    if file.stat().st_size == 0:
        raise DataError(f"{path}: the file is empty, 0 bytes. {AGAIN}")
    return file


def _payload(path: Path) -> bytes:
    """Return the file's bytes, unpacked; the whole stream is read so that its checksum is verified."""
    _refuse_packing(path)
    try:
        content = path.read_bytes()
        return gunzip(content) if path.name.endswith(".gz") else content
    except (OSError, EOFError, zlib.error) as cause:
        raise _unreadable(path, cause) from cause


def _refuse_packing(path: Path) -> None:
    """Stop at a name that says something else about compression than the content."""
    with path.open("rb") as file:
        packed = file.read(2) == GZIP_MAGIC
    if packed and not path.name.endswith(".gz"):
        raise DataError(f"{path}: is named .nii but gzip-compressed. Rename it to {path.name}.gz.")
    if path.name.endswith(".gz") and not packed:
        raise DataError(f"{path}: is named .gz but not gzip-compressed. Rename it to {path.name[:-3]}.")


def _unreadable(path: Path, cause: Exception) -> DataError:
    """Say why a stream could not be unpacked."""
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
        header = kind.from_fileobj(io.BytesIO(start))
        shape = header.get_data_shape()
        header.get_slope_inter()
    except (HeaderDataError, WrapStructError, ValueError) as cause:
        raise DataError(f"{path}: has no usable NIfTI header ({cause}). {AGAIN}") from cause
    _refuse_shape(shape, path)
    return header


def _refuse_shape(shape: tuple[int, ...], path: str) -> None:
    written = "x".join(str(count) for count in shape)
    if 0 in shape or not shape:
        raise DataError(f"{path}: holds no voxels, shape {written or '()'}. {AGAIN}")
    if len(shape) < 3 or min(shape[:3]) == 1:
        raise DataError(
            f"{path}: is a 2D image, shape {written}; a volume has at least 2 voxels along each of 3 axes. "
            f"Stack the slices of the series into one file."
        )
    if any(count != 1 for count in shape[3:]):
        raise DataError(
            f"{path}: has {len(shape)} axes, shape {written}; expected 3. "
            f"Split a series in time or echoes into one file each."
        )


def _turn(header: Any, path: str) -> Turn:
    """Read the orientation; refuse a file that states none, or two that contradict each other."""
    q_code, s_code = int(header["qform_code"]), int(header["sform_code"])
    if not q_code and not s_code:
        raise DataError(
            f"{path}: states no orientation (qform_code and sform_code are 0), so left and right are "
            f"unknown. Set it with nibabel: image.set_sform(affine, code=1)."
        )
    shape: Triple = tuple(int(count) for count in header.get_data_shape()[:3])  # type: ignore[assignment]
    if q_code and s_code:
        names = ["".join(nib.aff2axcodes(form) or "") for form in (header.get_qform(), header.get_sform())]
        if names[0] != names[1]:
            raise DataError(
                f"{path}: the header contradicts itself: qform runs to {names[0]}, sform to {names[1]}. "
                f"Find out which is true and set the other's code to 0 with nibabel."
            )
    return turn_to_body(header.get_best_affine(), shape, path)


def _refuse_not_finite(array: Array, path: str) -> None:
    bad = ~np.isfinite(array)
    if not bad.any():
        return
    z, y, x = (int(index) for index in np.argwhere(bad)[0])
    raise DataError(
        f"{path}: {int(bad.sum())} of {array.size} voxels are NaN or infinite, the first at "
        f"z={z}, y={y}, x={x}. Replace them with air (-1000 HU) or leave the case out."
    )
