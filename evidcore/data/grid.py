"""Where the voxels of a file and of a volume lie in the body."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from evidcore.case import Crop, Intensity

Array = np.ndarray[Any, np.dtype[Any]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]
Triple = tuple[int, int, int]

# Headers of a volume and its mask are often rounded differently; a tenth of a voxel moves no mask edge.
SAME_GRID_VOXELS = 0.1
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

    def box_of(self, crop: Crop) -> tuple[int, int, int, int, int, int]:
        """Return what a crop of the grid holds, z0, z1, y0, y1, x0, x1: all where it has no box."""
        z, y, x = self.shape_zyx
        return crop.box_zyx or (0, z, 0, y, 0, x)

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

    Both are in body order (z, y, x), their axes may be oblique.
    """

    stated: Geometry  # as the file has it; a mask often repeats the volume's wrong header
    meant: Geometry  # with the spacing that the reference gives


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Volume:
    """A scan in memory, in body axes whatever the file's were; `array` (z, y, x) is read-only."""

    array: Array  # int16 where the file's values are whole numbers that fit, else float32
    geometry: Geometry
    intensity: Intensity
    source: Source | None = None  # None: the file states `geometry` itself
    patient: Mapping[str, str] = dataclasses.field(default_factory=dict)  # as `Stored` has it

    @property
    def file_geometry(self) -> Geometry:
        """The grid that the file states, in body order; masks of the volume lie on it."""
        return self.geometry if self.source is None else self.source.stated

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
