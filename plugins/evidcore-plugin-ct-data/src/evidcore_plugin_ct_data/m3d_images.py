"""Images of the M3D family: where their axes run to, and slices that are pictures made into one array."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from evidcore.api import DataError, VolumeRef
from evidcore_plugin_ct_data.published import UNKNOWN_SPACING_MM

PICTURES = (".png", ".jpg", ".jpeg")
# The slices of a stack are shown as radiologists look at them: rows downwards, columns to the picture's
# right. Axial stacks are taken to begin at the top of the body, coronal ones in front, sagittal ones on the
# right.
PLANES: Mapping[str, str] = {"axial": "IPL", "coronal": "PIL", "sagittal": "LIP"}
_NUMBER = re.compile(r"\d+")


def axes_of(name: str, axes: Mapping[str, str]) -> str:
    """Return where the axes (slice, row, column) of a stack run to; its name begins with its plane.

    Args:
        name: of the stack, such as `Axial_C__portal_venous_phase`.
        axes: by plane, in place of what is usual.
    """
    plane = next((plane for plane in PLANES if plane in name.lower()), "axial")
    return {**PLANES, **axes}[plane]


def array_ref(path: Path, axes: str) -> VolumeRef:
    """Return the reference to an array without units, spacing or header."""
    return VolumeRef(path=str(path), intensity="arbitrary", axes=axes, spacing_mm_zyx=UNKNOWN_SPACING_MM)


def same_text(name: str) -> str:
    """Return a name without accents: the set's lists are written without, its folders with them."""
    decomposed = unicodedata.normalize("NFKD", name)
    return "".join(letter for letter in decomposed if not unicodedata.combining(letter))


def stack_key(folder: Path) -> list[Any]:
    """Return the key of the array made of a folder of slices: another one for another state of it."""
    slices = (
        sorted(path for path in folder.iterdir() if path.suffix.lower() in PICTURES)
        if folder.is_dir()
        else []
    )
    return [str(folder), [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in slices]]


def stack(folder: Path, to: Path) -> None:
    """Make one array (slice, row, column) of a folder of pictures, in the order of their numbers.

    Slices of another size than most are left out, as the publisher's program leaves them out: they are
    scouts.

    Raises:
        DataError: if there are fewer than two pictures, one has no number or cannot be read.
    """
    from PIL import Image, UnidentifiedImageError

    slices = [path for path in folder.iterdir() if path.suffix.lower() in PICTURES]
    for path in slices:
        if not _NUMBER.fullmatch(path.stem):
            raise DataError(f"{path}: a slice is named by its number, such as 12.jpeg. Rename or remove it.")
    pictures = []
    for path in sorted(slices, key=lambda path: int(path.stem)):
        try:
            with Image.open(path) as picture:
                pictures.append(np.asarray(picture.convert("L")))
        except (UnidentifiedImageError, OSError) as cause:
            raise DataError(
                f"{path}: is no readable picture ({cause}). Fetch it again or remove it."
            ) from cause
    usual = Counter(picture.shape for picture in pictures).most_common(1)
    kept = [picture for picture in pictures if picture.shape == usual[0][0]]
    if len(kept) < 2:
        raise DataError(
            f"{folder}: holds {len(kept)} slices of one size, a volume has at least 2. Leave it out."
        )
    np.save(to, np.stack(kept))
