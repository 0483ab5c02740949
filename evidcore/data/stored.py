"""Voxels as a file holds them, and what makes numbers of them."""

import contextlib
import dataclasses
import functools
import math
import os
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from evidcore.cache import plain_file
from evidcore.data.grid import Array, FileGrid
from evidcore.errors import DataError

AGAIN = "Copy or convert the file again."
CHECK_PATH = "Check the path in the table or the recipe."
MOST_BYTES = 1 << 32  # of voxels as stored; twice a whole-body CT of 0.8 mm in float32
MOST_SCALE = 1e12  # of a slope or an intercept
SUBSTITUTES = {
    rb"version https://git-lfs": "is a pointer of git-lfs, not the file. Type `git lfs pull` in its folder.",
    rb"(\xef\xbb\xbf)?\s*<(!doctype\s+)?html": "is an HTML page, not the file. Download it again, logged in.",
}


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Stored:
    """A file whose header has been read; `load` reads its voxels.

    A value is `slope` times what is stored plus `intercept`; both are numbers or broadcast in file order.
    """

    grid: FileGrid
    load: Callable[[], Array]  # in file order, unscaled
    slope: float | Array = 1.0
    intercept: float | Array = 0.0
    is_picture: bool = False  # one slice, no place in a body
    # by the header: `sex`, `age`, and of what a mask must share, `PatientID` and `FrameOfReferenceUID`
    patient: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def values(self, rescale: tuple[float, float] | None = None, *, exact: bool = False) -> Array:
        """Return the values in file order: int16 where they are whole numbers that fit, else float32.

        `rescale` is a slope and an intercept on top of the file's own. `exact` leaves unscaled whole numbers
        as they are stored.
        """
        factor, offset = rescale or (1.0, 0.0)
        raw, slope, intercept = self.load(), self.slope * factor, self.intercept * factor + offset
        is_one = bool(np.all(np.equal(slope, 1.0)))
        if exact and raw.dtype.kind in "biu" and is_one and not np.any(intercept):
            return raw
        if raw.dtype.kind in "biu" and is_one and np.all(np.equal(intercept, np.round(intercept))):
            limits = np.iinfo(np.int16)
            low, high = int(raw.min()) + int(np.min(intercept)), int(raw.max()) + int(np.max(intercept))
            if limits.min <= low and high <= limits.max:
                whole: Array = raw.astype(np.int16)  # both wrap around at 65536, the sum fits: it is right
                whole += np.asarray(intercept).astype(np.int64).astype(np.int16)
                return whole
        with np.errstate(over="ignore"):  # values beyond float32 become infinite and are refused by name
            if is_one and not np.any(intercept):
                return raw.astype(np.float32)
            scaled: Array = (raw.astype(np.float64) * slope + intercept).astype(np.float32)
            return scaled


def unreadable(
    path: str | os.PathLike[str], cause: Exception | None = None, remedy: str = CHECK_PATH
) -> DataError:
    """Return what to say of a path that cannot be read; without a `cause` nothing is there."""
    if cause is None or isinstance(cause, FileNotFoundError | NotADirectoryError):
        return DataError(f"{path}: there is no such file. {_other_spelling(Path(path)) or remedy}")
    why = getattr(cause, "strerror", None) or cause
    return DataError(f"{path}: cannot be read ({why}). Check the path, and your rights to read it.")


@contextlib.contextmanager
def memory_named(path: str) -> Iterator[None]:
    """Say of a file that it is too large where memory runs out: a packed one of kilobytes holds gigabytes."""
    try:
        yield
    except MemoryError as cause:
        text = "is too large for the memory that is left. Crop or resample it, or take a larger machine."
        raise DataError(f"{path}: {text}") from cause


def _other_spelling(path: Path) -> str:
    """Say what is there of a name that differs in Unicode form or letter case alone, and what to do."""
    there = Path(path.anchor)
    try:
        for part in path.parts[len(there.parts) :]:
            is_there = os.path.lexists(there / part)
            there /= part if is_there else _names(there, there.stat().st_mtime_ns)[_folded(part)]
    except (OSError, ValueError, KeyError):
        return ""
    if there == path:  # a link to nowhere
        return ""
    return f"{there} is there: its name differs in letter case or Unicode form. Write it so, or rename it."


@functools.lru_cache(maxsize=8)
def _names(folder: Path, changed_ns: int) -> dict[str, str]:
    return {_folded(name): name for name in os.listdir(folder)}


def _folded(name: str) -> str:
    return unicodedata.normalize("NFD", name).casefold()


def refuse_substitute(path: str | os.PathLike[str]) -> None:
    """Stop at what a download left in place of a file."""
    start = b""
    with contextlib.suppress(OSError), open(plain_file(path, is_text=False), "rb") as file:
        start = file.read(64)  # its format says what cannot be read
    for pattern, what in SUBSTITUTES.items():
        if re.match(pattern, start, re.IGNORECASE):
            raise DataError(f"{path}: {what}")


def refuse_flat(shape: tuple[int, ...], path: str) -> None:
    """Stop at what is no volume: at least 2 voxels along each of 3 axes."""
    if len(shape) != 3 or min(shape) < 2:
        raise DataError(
            f"{path}: is a 2D image, shape {written(shape)}; a volume has at least 2 voxels along each of "
            f"3 axes. Stack the slices of the series into one file."
        )


def refuse_shape(shape: tuple[int, ...], path: str, voxel_bytes: int = 1) -> None:
    """Stop at a file without voxels, of one slice without depth, of several volumes, or beyond all memory."""
    if min(shape, default=0) < 1:
        raise DataError(f"{path}: holds no voxels, shape {written(shape) or '()'}. {AGAIN}")
    if len(shape) < 3:
        refuse_flat(shape, path)
    if any(count != 1 for count in shape[3:]):
        raise DataError(
            f"{path}: has {len(shape)} axes, shape {written(shape)}; expected 3. "
            f"Split a series in time, echoes, or layers of masks that overlap, into one file each."
        )
    if (needed := math.prod(map(int, shape)) * voxel_bytes) > MOST_BYTES:
        raise DataError(
            f"{path}: its header states shape {written(shape)}, {needed / 1e9:.3g} GB of voxels; at most "
            f"{MOST_BYTES / 1e9:.2g} GB are read. Crop or resample the scan, or correct a damaged header."
        )


def refuse_scale(stored: Stored, path: str) -> None:
    """Stop at a slope or an intercept that is no number, or beyond all units."""
    for name in ("slope", "intercept"):
        value = np.ravel(getattr(stored, name))
        odd = value[~(np.abs(value) <= MOST_SCALE)]  # NaN is not below
        if odd.size:
            raise DataError(f"{path}: its {name} is {float(odd[0])!r}, expected a usual number. {AGAIN}")


def refuse_type(dtype: np.dtype[np.generic], path: str) -> None:
    """Stop at colours, complex numbers and text."""
    if dtype.kind not in "biuf":
        raise DataError(
            f"{path}: voxels are {dtype}, expected one real number each. Save it as int16 or float32."
        )


def refuse_not_finite(array: Array, path: str) -> None:
    """Stop at NaN and infinity in a (z, y, x) array."""
    if array.dtype.kind != "f" or np.isfinite(array).all():
        return
    bad = ~np.isfinite(array)
    z, y, x = (int(index) for index in np.argwhere(bad)[0])
    raise DataError(
        f"{path}: {int(bad.sum())} of {array.size} voxels are NaN or infinite, the first at "
        f"z={z}, y={y}, x={x}. Replace them with air (-1000 HU) or leave the case out."
    )


def written(shape: tuple[int, ...]) -> str:
    """Return a shape as text, `4x5x6`."""
    return "x".join(str(count) for count in shape)
