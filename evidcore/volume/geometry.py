"""Where voxels lie in the body, and the turn from a file's axes to ours."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from evidcore.case import Intensity
from evidcore.errors import DataError

Array = np.ndarray[Any, np.dtype[Any]]
Triple = tuple[int, int, int]

# At 1° a slice of 400 mm leans by 7 mm: about the thickness of one clinical slice.
TILT_LIMIT_DEGREES = 1.0
# Headers of a volume and its mask are often rounded differently; a tenth of a voxel moves no mask edge.
SAME_GRID_VOXELS = 0.1


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Geometry:
    """The voxel grid of a volume.

    `affine` takes an index (z, y, x, 1) to a place in the body (z, y, x, 1) in mm: z to superior,
    y to posterior, x to the patient's left (LPS, in our axis order).
    """

    shape_zyx: Triple
    affine: Array

    @property
    def spacing_mm_zyx(self) -> tuple[float, float, float]:
        """Distance between neighbouring voxel centres."""
        z, y, x = np.linalg.norm(self.affine[:3, :3], axis=0)
        return float(z), float(y), float(x)

    def apart_voxels(self, other: Geometry) -> float:
        """Measure how far the corners of two grids of equal shape lie apart, in voxels of this one."""
        last = np.array(self.shape_zyx) - 1
        corners = np.array([[*(last * pick), 1] for pick in np.ndindex(2, 2, 2)]).T
        gap_mm = np.abs((self.affine - other.affine) @ corners)[:3].max(axis=1)
        return float((gap_mm / np.array(self.spacing_mm_zyx)).max())

    def fits(self, other: Geometry) -> bool:
        """Tell whether both grids hold the same voxels."""
        return self.shape_zyx == other.shape_zyx and self.apart_voxels(other) <= SAME_GRID_VOXELS

    def __str__(self) -> str:
        """Size, spacing and origin, all z, y, x."""
        size = "x".join(str(count) for count in self.shape_zyx)
        spacing = "x".join(f"{step:.4g}" for step in self.spacing_mm_zyx)
        origin = ", ".join(f"{place:.1f}" for place in self.affine[:3, 3])
        return f"{size} voxels of {spacing} mm from ({origin}) mm (z, y, x)"


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Volume:
    """A scan in memory, in body axes whatever the file's were; `array` (z, y, x) is read-only."""

    array: Array  # int16 where the file's values are whole numbers that fit, else float32
    geometry: Geometry
    intensity: Intensity

    @property
    def shape_zyx(self) -> Triple:
        """Number of voxels."""
        return self.geometry.shape_zyx

    @property
    def affine(self) -> Array:
        """Index (z, y, x, 1) to mm (z, y, x, 1), see `Geometry`."""
        return self.geometry.affine

    @property
    def spacing_mm_zyx(self) -> tuple[float, float, float]:
        """Distance between neighbouring voxel centres."""
        return self.geometry.spacing_mm_zyx


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Turn:
    """The way from a file's axes to ours: which of them becomes z, y and x, and which run backwards."""

    axes: Triple
    backwards: tuple[bool, bool, bool]
    geometry: Geometry

    def apply(self, array: Array) -> Array:
        """Return `array`, indexed as in the file, as a (z, y, x) view."""
        flips = tuple(slice(None, None, -1 if flip else 1) for flip in self.backwards)
        return array.transpose(self.axes)[flips]


def turn_to_body(affine_ras: Array, shape: Triple, path: str) -> Turn:
    """Work out how a file's voxels lie in the body.

    Args:
        affine_ras: index in file order to mm: x to the right, y to anterior, z to superior, as NIfTI has it.
        shape: voxels in file order.
        path: named in errors.

    Raises:
        DataError: if the affine is broken, or the axes lean more than 1° from the body's.
    """
    affine = np.diag([-1.0, -1.0, 1.0, 1.0]) @ np.asarray(affine_ras, dtype=np.float64)  # LPS rows x, y, z
    columns = affine[:3, :3]
    steps_mm = np.linalg.norm(columns, axis=0)
    if not np.isfinite(affine).all() or not (steps_mm > 0).all():
        raise DataError(
            f"{path}: the affine must be finite with spacings above 0 mm, got spacings "
            f"{[round(float(step), 4) for step in steps_mm]}. Write the file again with a right header."
        )
    directions = columns / steps_mm
    _refuse_tilt(directions, path)
    body_axis = np.abs(directions).argmax(axis=0)  # for each file axis: 0 x, 1 y, 2 z
    axes = tuple(int(np.flatnonzero(body_axis == body)[0]) for body in (2, 1, 0))
    backwards = tuple(bool(directions[body, axis] < 0) for body, axis in zip((2, 1, 0), axes, strict=True))
    turned = np.eye(4)
    origin = affine[:3, 3].copy()
    for ours, (axis, flip) in enumerate(zip(axes, backwards, strict=True)):
        turned[:3, ours] = -columns[:, axis] if flip else columns[:, axis]
        if flip:
            origin += columns[:, axis] * (shape[axis] - 1)
    turned[:3, 3] = origin
    turned[:3] = turned[2::-1].copy()  # rows x, y, z to z, y, x
    geometry = Geometry(shape_zyx=(shape[axes[0]], shape[axes[1]], shape[axes[2]]), affine=turned)
    return Turn(
        axes=(axes[0], axes[1], axes[2]),
        backwards=(backwards[0], backwards[1], backwards[2]),
        geometry=geometry,
    )


def _refuse_tilt(directions: Array, path: str) -> None:
    """Stop at axes that are not the body's; slices and boxes would not mean what they say."""
    tilt = float(np.degrees(np.arccos(np.clip(np.abs(directions).max(axis=0), 0.0, 1.0))).max())
    if tilt <= TILT_LIMIT_DEGREES:
        return
    overlap = np.abs(directions.T @ directions - np.eye(3)).max()
    kind = "sheared" if overlap > np.sin(np.radians(TILT_LIMIT_DEGREES)) else "oblique"
    raise DataError(
        f"{path}: the voxel axes are {kind}, {tilt:.1f}° off the body axes; at most "
        f"{TILT_LIMIT_DEGREES:g}° is read. Resample it onto a straight grid first, for instance with "
        f"nibabel.processing.resample_to_output(image, cval=-1024), and its masks with order=0."
    )
