"""2D pictures as volumes of one slice."""

import contextlib
import dataclasses
import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from evidcore.cache import write_atomically
from evidcore.case import MaskRef, VolumeRef
from evidcore.data.format import Format
from evidcore.data.grid import Array, FileGrid, Mask, Volume
from evidcore.data.masks import label_mask
from evidcore.data.stored import AGAIN, Stored
from evidcore.errors import DataError

MISTAKES = (OSError, ValueError, SyntaxError, Image.DecompressionBombError)
GREYS = ("L", "I", "F")  # 8 bits, up to 32 bits, real numbers
LEAST_PIXELS = 2


class Picture(Format):
    """A 2D picture as a volume of one slice.

    Its rows run to posterior, its columns to the left, 1 mm apart: a picture says nothing of its body.
    Colours become luminance, transparency is left out, grey values of 16 bits stay.
    """

    def open(self, ref: VolumeRef) -> Stored:
        """Read the size."""
        path = ref.path
        if ref.intensity == "hu":
            raise DataError(
                f"{path}: a picture holds no Hounsfield units. Set intensity = 'arbitrary' on the data set."
            )
        with _opened(path) as picture:
            columns, rows = picture.size
            frames = getattr(picture, "n_frames", 1)
        if frames != 1:
            raise DataError(f"{path}: holds {frames} pictures, expected one. Save them one a file.")
        if min(columns, rows) < LEAST_PIXELS:
            raise DataError(
                f"{path}: is {columns} x {rows} pixels, expected at least {LEAST_PIXELS} each way. {AGAIN}"
            )
        return Stored(
            grid=FileGrid(shape=(columns, rows, 1), affine=np.eye(4)),
            load=lambda: _greys(path).T[:, :, None],
            is_picture=True,
        )

    def mask(self, ref: MaskRef, like: Volume) -> Mask:
        """Return the voxels of a label of a PNG in greys, of one with 1 bit as 0 and 1."""
        path = ref.path
        with _opened(path) as picture:
            mode, kind = picture.mode, picture.format
        if kind != "PNG":
            raise DataError(f"{path}: is a {kind} by its content, which keeps no labels. Save it as PNG.")
        if mode not in {"1", *GREYS} and not mode.startswith("I;16"):
            why = f"a mask is a picture in greys, one value a label, got colours (mode {mode!r})"
            raise DataError(f"{path}: {why}. Save it in greys.")
        stored = self.open(VolumeRef(path=path, intensity="arbitrary"))
        as_stored = ("1", *GREYS)
        labels = dataclasses.replace(stored, load=lambda: _greys(path, as_stored).T[:, :, None])
        return label_mask(labels, ref, like)


def _greys(path: str, as_stored: tuple[str, ...] = GREYS) -> Array:
    """Return what is stored in some modes, luminance of the others, shape (row, column)."""
    with _opened(path) as picture:
        if picture.mode.startswith("I;16"):
            return np.asarray(picture, dtype=np.uint16)
        return np.asarray(picture if picture.mode in as_stored else picture.convert("L"))


def colours(path: str, *, in_colours: bool = True) -> Array | None:
    """Return a picture of 8 bits, uint8: (y, x, red green blue), or its luminance, (y, x); else None."""
    with _opened(path) as picture:
        if picture.mode in ("I", "F") or picture.mode.startswith("I;16"):
            return None
        return np.asarray(picture.convert("RGB" if in_colours else "L"))


def save_picture(values: Array, path: Path) -> None:
    """Write a picture as `.png` in one move: (y, x, red green blue) of 8 bits, or greys of 8 or 16 (y, x)."""
    png = io.BytesIO()
    Image.fromarray(values if values.dtype == np.uint8 else values.astype(np.uint16)).save(png, format="PNG")
    write_atomically(path, png.getvalue(), or_else="name another folder")


@contextlib.contextmanager
def _opened(path: str) -> Iterator[Image.Image]:
    """Open a picture; what is wrong with it may show only where its pixels are asked for."""
    try:
        with Image.open(path, formats=("PNG", "JPEG")) as picture:  # others: PostScript starts Ghostscript
            yield picture
    except MISTAKES as cause:
        raise DataError(f"{path}: is not a readable picture ({cause}). {AGAIN}") from cause
