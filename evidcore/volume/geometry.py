"""Where voxels lie in the body, and the turn from a file's axes to ours."""

from __future__ import annotations

import dataclasses
from typing import Any

import nibabel as nib
import numpy as np

from evidcore.case import Intensity
from evidcore.errors import DataError

Array = np.ndarray[Any, np.dtype[Any]]
Triple = tuple[int, int, int]

# Headers of a volume and its mask are often rounded differently; a tenth of a voxel moves no mask edge.
SAME_GRID_VOXELS = 0.1
LEAST_VOLUME = 1e-3  # of the unit directions; below, three axes span no space
LPS_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])


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
class Source:
    """The grid of a volume's file where it is not the volume's; masks lie on the file's.

    Both are in body order (z, y, x), their axes may lean.
    """

    stated: Geometry  # as the file has it
    meant: Geometry  # with the spacing that the reference gives


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Volume:
    """A scan in memory, in body axes whatever the file's were; `array` (z, y, x) is read-only."""

    array: Array  # int16 where the file's values are whole numbers that fit, else float32
    geometry: Geometry
    intensity: Intensity
    source: Source | None = None  # None: the file states `geometry` itself

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
class FileGrid:
    """The voxels of a file in its own order of axes.

    `affine` takes an index in file order to a place (x, y, z) in mm: x to the patient's left, y to posterior,
    z to superior, as in DICOM.
    """

    shape: Triple
    affine: Array

    @property
    def affine_ras(self) -> Array:
        """The affine as NIfTI has it: x to the right, y to anterior."""
        return LPS_RAS @ self.affine


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Turn:
    """The way from a file's axes to ours: which of them becomes z, y and x, and which run backwards."""

    axes: Triple
    backwards: tuple[bool, bool, bool]
    geometry: Geometry

    def apply(self, array: Array) -> Array:
        """Return `array`, indexed as in the file, as a (z, y, x) view."""
        return array.transpose(self.axes)[self._flips]

    def undo(self, array: Array) -> Array:
        """Return a (z, y, x) array as a view that is indexed as in the file."""
        return array[self._flips].transpose(np.argsort(self.axes))

    @property
    def _flips(self) -> tuple[slice, ...]:
        return tuple(slice(None, None, -1 if flip else 1) for flip in self.backwards)


def turn_to_body(grid: FileGrid, path: str) -> Turn:
    """Work out which of a file's axes runs along which of the body's; they may lean.

    Args:
        grid: the file's voxels.
        path: named in errors.

    Raises:
        DataError: if the affine is broken.
    """
    columns = grid.affine[:3, :3]
    steps_mm = np.linalg.norm(columns, axis=0)
    if not np.isfinite(grid.affine).all() or not (steps_mm > 0).all():
        raise DataError(
            f"{path}: the affine must be finite with spacings above 0 mm, got spacings "
            f"{[round(float(step), 4) for step in steps_mm]}. Write the file again with a right header."
        )
    nearest = nib.io_orientation(grid.affine)  # for each file axis: 0 x, 1 y, 2 z; and 1 or -1
    if np.isnan(nearest).any() or abs(np.linalg.det(columns / steps_mm)) < LEAST_VOLUME:
        raise DataError(
            f"{path}: the voxel axes lie in one plane, directions "
            f"{(columns / steps_mm).round(3).T.tolist()}. Write the file again with a right header."
        )
    axes = tuple(int(np.flatnonzero(nearest[:, 0] == body)[0]) for body in (2, 1, 0))
    backwards = tuple(bool(nearest[axis, 1] < 0) for axis in axes)
    turned = np.eye(4)
    origin = grid.affine[:3, 3].copy()
    for ours, (axis, flip) in enumerate(zip(axes, backwards, strict=True)):
        turned[:3, ours] = -columns[:, axis] if flip else columns[:, axis]
        if flip:
            origin += columns[:, axis] * (grid.shape[axis] - 1)
    turned[:3, 3] = origin
    turned[:3] = turned[2::-1].copy()  # rows x, y, z to z, y, x
    z, y, x = axes
    geometry = Geometry(shape_zyx=(grid.shape[z], grid.shape[y], grid.shape[x]), affine=turned)
    return Turn(axes=(z, y, x), backwards=(backwards[0], backwards[1], backwards[2]), geometry=geometry)
