"""Voxel sizes that no scanner makes, and those that a table contradicts."""

from __future__ import annotations

from collections.abc import Iterator

from evidcore.case import VolumeRef
from evidcore.volume import Geometry
from evidcore_plugin_doctor.fault import Severity

SMALLEST_MM, LARGEST_MM = 0.05, 30.0
FIELD_MM = (20.0, 2500.0)  # of a scan, along any axis
SLICE_MM = 10.0  # slices of a CT that stand farther apart leave anatomy out
FULL_MATRIX = (512, 768, 1024)
DIFFERENT = 0.01  # of the stated spacing

Said = tuple[Severity, str]


def unlikely(ref: VolumeRef, geometry: Geometry, stated: Geometry) -> Iterator[Said]:
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
    said = f"a spacing of {_written(spacing)} mm (z, y, x)"
    if max(spacing) < SMALLEST_MM and min(spacing) > SMALLEST_MM / 1000:
        metres = _written(tuple(1000 * step for step in spacing))
        yield (
            "error",
            f"{said}, {geometry.shape_zyx} voxels: no scanner is as fine. Taken as metres it would be "
            f"{metres} mm. Write the affine in mm.",
        )
    elif min(spacing) > LARGEST_MM:
        microns = _written(tuple(step / 1000 for step in spacing))
        yield (
            "error",
            f"{said}, {geometry.shape_zyx} voxels: no scanner is as coarse. Taken as micrometres it would be "
            f"{microns} mm. Write the affine in mm.",
        )
    elif min(spacing) < SMALLEST_MM or max(spacing) > LARGEST_MM:
        yield (
            "error",
            f"{said}: one axis is beyond {SMALLEST_MM:g} to {LARGEST_MM:g} mm. Set the affine from the "
            f"scanner's own spacing.",
        )
    elif ref.intensity == "hu" and spacing == (1.0, 1.0, 1.0) and geometry.shape_zyx[1] in FULL_MATRIX:
        yield (
            "warning",
            f"{said} with a matrix of {geometry.shape_zyx[1]} x {geometry.shape_zyx[2]}: what a header says "
            f"that nobody has filled in, and a field of view of {geometry.shape_zyx[1]} mm. Set the affine "
            f"from the scanner's own spacing.",
        )
    else:
        yield from _field(ref, geometry)


def _field(ref: VolumeRef, geometry: Geometry) -> Iterator[Said]:
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
