"""Voxel sizes that no scanner makes, and those that a table contradicts."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy import ndimage

from evidcore.api import VolumeRef
from evidcore.data import Geometry, Volume
from evidcore_plugin_doctor.fault import Remark

SMALLEST_MM, LARGEST_MM = 0.05, 30.0
FIELD_MM = (20.0, 2500.0)  # of a scan, along any axis
SLICE_MM = 10.0  # slices of a CT that stand farther apart leave anatomy out
PIXEL_MM = 0.12  # the finest of a clinical CT: a field of view of 60 mm on a matrix of 512
SQUARE = 1.5  # a pixel's longer side to its shorter one; scanners make 1, networks resize to 1.4
THIN = 0.4  # of a pixel: no slices stand closer
TRUNK_MM, LIMB_MM = 80.0, 30.0  # across; a newborn's chest has 90 mm, a wrist 40
TISSUE_HU = -300.0
LUNG_HU = (-950.0, -400.0)
SLICES = 10  # looked at
CUT = 0.02  # of a slice's edge may be tissue: a table
LUNG_SHARE = 0.1  # of a body's outline in a slice
FULL_MATRIX = (512, 768, 1024)
DIFFERENT = 0.01  # of the stated spacing


def unlikely(ref: VolumeRef, geometry: Geometry, stated: Geometry) -> Iterator[Remark]:
    """Yield what is odd about the size of voxels.

    Args:
        ref: the volume; its `spacing_mm_zyx` is what a table says, if any does.
        geometry: the grid as it is used, `ref`'s marks applied.
        stated: the grid as the file alone says.
    """
    if ref.spacing_mm_zyx is not None:
        pairs = zip(ref.spacing_mm_zyx, stated.spacing_mm_zyx, strict=True)
        if any(abs(table - file) > DIFFERENT * table for table, file in pairs):
            yield (
                "warning",
                f"the file states a spacing of {_written(stated.spacing_mm_zyx)} mm (z, y, x), the table "
                f"{_written(ref.spacing_mm_zyx)} mm; the table's is used. Look which one is true.",
            )
    spacing = geometry.spacing_mm_zyx
    size = f"a spacing of {_written(spacing)} mm (z, y, x)"
    if max(spacing) < SMALLEST_MM and min(spacing) > SMALLEST_MM / 1000:
        metres = _written(tuple(1000 * step for step in spacing))
        yield (
            "error",
            f"{size}, {geometry.shape_zyx} voxels: no scanner is as fine. Taken as metres it would be "
            f"{metres} mm. Write the affine in mm.",
        )
    elif min(spacing) > LARGEST_MM:
        microns = _written(tuple(step / 1000 for step in spacing))
        yield (
            "error",
            f"{size}, {geometry.shape_zyx} voxels: no scanner is as coarse. Taken as micrometres it would be "
            f"{microns} mm. Write the affine in mm.",
        )
    elif min(spacing) < SMALLEST_MM or max(spacing) > LARGEST_MM:
        yield (
            "error",
            f"{size}: one axis is beyond {SMALLEST_MM:g} to {LARGEST_MM:g} mm. Set the affine from the "
            f"scanner's own spacing.",
        )
    elif ref.intensity == "hu" and spacing == (1.0, 1.0, 1.0) and geometry.shape_zyx[1] in FULL_MATRIX:
        yield (
            "warning",
            f"{size} with a matrix of {geometry.shape_zyx[1]} x {geometry.shape_zyx[2]}: what a header says "
            f"that nobody has filled in, and a field of view of {geometry.shape_zyx[1]} mm. Set the affine "
            f"from the scanner's own spacing.",
        )
    else:
        yield from _pixels(ref, geometry)
        yield from _field(ref, geometry)


def _pixels(ref: VolumeRef, geometry: Geometry) -> Iterator[Remark]:
    """Yield what is odd about the shape and size of the pixels of a slice; slices of a CT are axial."""
    spacing = sorted(geometry.spacing_mm_zyx)
    size = f"a spacing of {_written(geometry.spacing_mm_zyx)} mm (z, y, x)"
    if ref.intensity == "hu":
        z, *pixel = geometry.spacing_mm_zyx
        ratio = max(pixel) / min(pixel)
    else:
        ratio = min(spacing[1] / spacing[0], spacing[2] / spacing[1])  # any axis may be the slices'
        z, pixel = spacing[2], spacing[:2]
    if ratio > SQUARE:
        yield (
            "warning",
            f"{size}: pixels are {ratio:.2g} times as long as wide, and scanners make square ones. Set the "
            "affine from the scanner's own spacing.",
        )
    elif ref.intensity == "hu" and max(pixel) < PIXEL_MM:
        yield (
            "warning",
            f"{size}: no clinical CT has pixels below {PIXEL_MM:g} mm. Set the affine from the scanner's own "
            f"spacing.",
        )
    elif ref.intensity == "hu" and z < THIN * max(pixel):
        yield (
            "warning",
            f"{size}: slices stand closer than {THIN:g} of a pixel, as no scanner puts them. Set the "
            "affine from the scanner's own spacing.",
        )


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
    return "warning", (
        f"a spacing of {_written(volume.spacing_mm_zyx)} mm (z, y, x) makes the {what} {width:.0f} mm "
        f"wide, expected at least {least:g} mm. Set the affine from the scanner's own spacing."
    )


def _field(ref: VolumeRef, geometry: Geometry) -> Iterator[Remark]:
    """Yield what is odd about the extent of the scan and the distance of its slices."""
    spacing = geometry.spacing_mm_zyx
    extent = [count * step for count, step in zip(geometry.shape_zyx, spacing, strict=True)]
    if not FIELD_MM[0] <= max(extent) <= FIELD_MM[1]:
        yield (
            "warning",
            f"the scan spans {_written(tuple(extent))} mm (z, y, x), expected {FIELD_MM[0]:g} to "
            f"{FIELD_MM[1]:g} mm. Set the affine from the scanner's own spacing.",
        )
    elif ref.intensity == "hu" and spacing[0] > SLICE_MM:
        yield (
            "warning",
            f"slices lie {spacing[0]:g} mm apart; anatomy between them is not seen. Look whether slices are "
            f"missing.",
        )


def _written(numbers: tuple[float, ...]) -> str:
    return " x ".join(f"{number:.4g}" for number in numbers)
