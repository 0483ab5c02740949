"""Voxel sizes that no scanner makes, and those that a table contradicts."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from scipy import ndimage

from evidcore.api import VolumeRef
from evidcore.data import Geometry, Volume
from evidcore_plugin_doctor.anatomy import LUNG_HU, TISSUE_HU
from evidcore_plugin_doctor.fault import Remark, error, warning

SMALLEST_MM, LARGEST_MM = 0.05, 30.0
FIELD_MM = (20.0, 2500.0)  # of a scan, along any axis
SLICE_MM = 10.0  # slices of a CT that stand farther apart leave anatomy out
PIXEL_MM = 0.12  # the finest of a clinical CT: a field of view of 60 mm on a matrix of 512
SQUARE = 1.5  # a pixel's longer side to its shorter one; scanners make 1, networks resize to 1.4
THIN = 0.4  # of a pixel: no slices stand closer
TRUNK_MM, LIMB_MM = 80.0, 30.0  # across; a newborn's chest has 90 mm, a wrist 40
SLICES = 10  # looked at
CUT = 0.02  # of a slice's edge may be tissue: a table
LUNG_SHARE = 0.1  # of a body's outline in a slice
FULL_MATRIX = (512, 768, 1024)
DIFFERENT = 0.01  # of the stated spacing
ROUNDED = 0.05  # of the file's, by which what people write in a column differs

Triple = np.ndarray[Any, np.dtype[np.float64]]  # z, y, x in mm

_SCANNER = "Set the affine from the scanner's own spacing."
_WHICH = "Look which one is true."


def unlikely(ref: VolumeRef, geometry: Geometry, stated: Geometry) -> Iterator[Remark]:
    """Yield what is odd about the size of voxels.

    Args:
        ref: the volume; its `spacing_mm_zyx` is what a table says, if any does.
        geometry: the grid as it is used, `ref`'s marks applied.
        stated: the grid as the file alone says.
    """
    if ref.spacing_mm_zyx is not None:
        file, table = np.array(stated.spacing_mm_zyx), np.array(ref.spacing_mm_zyx)
        if (np.abs(table - file) > DIFFERENT * table).any():
            text = f"{_of_file(stated)}, the table {_written(table)} mm; the table's is used."
            yield warning(f"{text} {_WHICH}")
    spacing = np.array(geometry.spacing_mm_zyx)
    smallest, largest = spacing.min(), spacing.max()
    size = f"a spacing of {_written(spacing)} mm (z, y, x)"
    rows, columns = geometry.shape_zyx[1:]
    if largest < SMALLEST_MM and smallest > SMALLEST_MM / 1000:
        taken = f"Taken as metres it would be {_written(1000 * spacing)} mm. Write the affine in mm."
        yield error(f"{size}, {geometry.shape_zyx} voxels: no scanner is as fine. {taken}")
    elif smallest > LARGEST_MM:
        taken = f"Taken as micrometres it would be {_written(spacing / 1000)} mm. Write the affine in mm."
        yield error(f"{size}, {geometry.shape_zyx} voxels: no scanner is as coarse. {taken}")
    elif smallest < SMALLEST_MM or largest > LARGEST_MM:
        yield error(f"{size}: one axis is beyond {SMALLEST_MM:g} to {LARGEST_MM:g} mm. {_SCANNER}")
    elif ref.intensity == "hu" and (spacing == 1).all() and rows in FULL_MATRIX:
        why = f"{size} with a matrix of {rows} x {columns}: what a header says that nobody has filled in"
        yield warning(f"{why}, and a field of view of {rows} mm. {_SCANNER}")
    else:
        extent_mm = spacing * geometry.shape_zyx
        if odd := _odd(spacing, size, extent_mm, is_ct=ref.intensity == "hu"):
            yield warning(odd)


def unlike_table(cell: str, stated: Geometry) -> Iterator[Remark]:
    """Yield that a table's column gives another spacing than the file; its order of the axes is not known."""
    numbers = [float(number) for number in re.findall(r"\d+(?:\.\d+)?(?:e-?\d+)?", cell.lower())]
    table, file = np.sort(numbers), np.sort(stated.spacing_mm_zyx)
    if len(table) == 3 and (np.abs(table - file) > ROUNDED * file).any():
        text = f"{_of_file(stated)}, the table's column {_written(numbers)} mm; the file's is used."
        yield warning(f"{text} {_WHICH}")


def _odd(spacing: Triple, size: str, extent_mm: Triple, *, is_ct: bool) -> str | None:
    """Say what is odd about the pixels of a slice, axial ones of a CT, the scan's extent or its slices."""
    z, *pixel = spacing if is_ct else np.sort(spacing)[::-1]
    ratio = max(pixel) / min(pixel)
    if not is_ct:
        ratio = min(ratio, z / max(pixel))  # any axis may be the slices'
    least, most = FIELD_MM
    if ratio > SQUARE:
        text = f"{size}: pixels are {ratio:.2g} times as long as wide, and scanners make square ones."
    elif is_ct and max(pixel) < PIXEL_MM:
        text = f"{size}: no clinical CT has pixels below {PIXEL_MM:g} mm."
    elif is_ct and z < THIN * max(pixel):
        text = f"{size}: slices stand closer than {THIN:g} of a pixel, as no scanner puts them."
    elif not least <= extent_mm.max() <= most:
        text = f"the scan spans {_written(extent_mm)} mm (z, y, x), expected {least:g} to {most:g} mm."
    elif is_ct and z > SLICE_MM:
        return (
            f"slices lie {z:g} mm apart; anatomy between them is not seen. Look whether slices are missing."
        )
    else:
        return None
    return f"{text} {_SCANNER}"


def too_small(volume: Volume) -> Remark | None:
    """Say that the body of a CT, seen whole across, is smaller than anybody's; None where it is not."""
    widths, airy = [], []
    steps = volume.spacing_mm_zyx[1:]
    for plane in volume.array[:: max(1, len(volume.array) // SLICES)]:
        tissue = plane > TISSUE_HU
        edges = np.concatenate([tissue[0], tissue[-1], tissue[:, 0], tissue[:, -1]])
        if not tissue.any() or edges.mean() > CUT:
            continue
        lengths = [np.ptp(np.flatnonzero(tissue.any(axis=1 - axis))) + 1 for axis in (0, 1)]
        widths.append(max(length * step for length, step in zip(lengths, steps, strict=True)))
        inside = ndimage.binary_fill_holes(tissue)
        lung = inside & (plane > LUNG_HU[0]) & (plane < LUNG_HU[1])
        airy.append(lung.sum() > LUNG_SHARE * inside.sum())
    if len(widths) < SLICES / 2:
        return None
    least = TRUNK_MM if np.mean(airy) > 1 / 3 else LIMB_MM
    width = float(np.median(widths))
    if width >= least:
        return None
    what = "chest" if least == TRUNK_MM else "body"
    why = f"a spacing of {_written(volume.spacing_mm_zyx)} mm (z, y, x) makes the {what} {width:.0f} mm wide"
    return warning(f"{why}, expected at least {least:g} mm. {_SCANNER}")


def _of_file(stated: Geometry) -> str:
    return f"the file states a spacing of {_written(stated.spacing_mm_zyx)} mm (z, y, x)"


def _written(numbers: Iterable[float]) -> str:
    return " x ".join(f"{number:.4g}" for number in numbers)
