"""Voxels that no flip or turn leaves as they are, and the files that hold them."""

import csv
import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import nibabel as nib
import nibabel.orientations as orientations
import numpy as np

SHAPE_ZYX = (6, 8, 10)
SPACING_MM_ZYX = (2.5, 0.75, 0.75)
BODY = "SPL"
PUBLISHED = tomllib.loads(Path(__file__).with_name("published.toml").read_text(encoding="utf-8"))

Array = np.ndarray[Any, np.dtype[Any]]


def volume(number: int) -> Array:
    """Return a volume (z, y, x) in body axes, in HU: every voxel has a value of its own."""
    return (np.arange(np.prod(SHAPE_ZYX), dtype=np.int16) * 2 - 900 + number).reshape(SHAPE_ZYX)


def mask(number: int) -> Array:
    """Return a mask (z, y, x) in body axes, an L of four voxels that no turn leaves as it is."""
    result = np.zeros(SHAPE_ZYX, np.bool_)
    result[1 + number % 3, 2, 3:6] = True
    result[2 + number % 3, 2, 3] = True
    return result


def turned(array: Array, axes: str) -> Array:
    """Return an array (z, y, x) in body axes as a file would hold it whose axes run to `axes`."""
    way = orientations.ornt_transform(orientations.axcodes2ornt(BODY), orientations.axcodes2ornt(axes))
    return np.ascontiguousarray(orientations.apply_orientation(array, way))


def nifti(path: Path, array: Array, axes: str, spacing_mm_zyx: Sequence[float] = SPACING_MM_ZYX) -> None:
    """Write an array (z, y, x) in body axes as a NIfTI file whose axes run to `axes`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    dz, dy, dx = spacing_mm_zyx
    image = nib.Nifti1Image(array.transpose(2, 1, 0), np.diag([-dx, -dy, dz, 1.0]))
    way = orientations.ornt_transform(nib.io_orientation(image.affine), orientations.axcodes2ornt(axes))
    nib.save(image.as_reoriented(way), path)


def table(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a CSV file with the columns of the first row."""
    rows = list(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def document(path: Path, content: Any) -> None:
    """Write a JSON file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")
