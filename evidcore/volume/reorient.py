"""Oblique and sheared axes: refused by name, or resampled once onto a grid along the body's axes."""

from __future__ import annotations

import dataclasses

import numpy as np
from nibabel.spaces import vox2out_vox

from evidcore.case import VolumeRef
from evidcore.errors import DataError
from evidcore.formats import Array, FileGrid, Geometry, Source
from evidcore.volume.geometry import Turn, turn_to_body

# At 1° a slice of 400 mm leans by 7 mm: about the thickness of one clinical slice.
TILT_LIMIT_DEGREES = 1.0


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Placement:
    """How the voxels of a file become those of its volume: turned, and resampled if they are oblique."""

    turn: Turn  # its geometry is what the file states, in body order
    meant: Geometry  # with the spacing of the reference
    geometry: Geometry  # the volume's

    @property
    def is_resampled(self) -> bool:
        """Whether the volume's voxels are others than the file's."""
        return self.geometry is not self.meant

    @property
    def source(self) -> Source | None:
        """What masks of the volume need; None where the file states the volume's grid."""
        if self.geometry is self.turn.geometry:
            return None
        return Source(stated=self.turn.geometry, meant=self.meant)


def place(grid: FileGrid, ref: VolumeRef) -> Placement:
    """Work out the grid of a volume from that of its file.

    Raises:
        DataError: if the axes are more than 1° off the body's, unless the reference says to resample.
    """
    turn = turn_to_body(grid, ref.path)
    meant = geometry = turn.geometry
    if ref.spacing_mm_zyx is not None:
        meant = geometry = _with_spacing(meant, ref.spacing_mm_zyx)
    if tilt_degrees(meant) > TILT_LIMIT_DEGREES:
        if ref.tilted == "refuse":
            raise _oblique(meant, ref.path)
        geometry = _along_body(meant)
    return Placement(turn=turn, meant=meant, geometry=geometry)


def tilt_degrees(geometry: Geometry) -> float:
    """Return the largest angle between a voxel axis and its body axis."""
    along = np.diag(geometry.affine)[:3] / np.array(geometry.spacing_mm_zyx)
    return float(np.degrees(np.arccos(np.clip(along, -1.0, 1.0))).max())


def resample(array: Array, held: Geometry, wanted: Geometry, *, order: int, outside: float) -> Array:
    """Return the values of `array`, which lies on `held`, at the voxels of `wanted`, in the same type.

    Args:
        array: (z, y, x).
        held: its grid.
        wanted: the other grid.
        order: 0 takes the nearest voxel, 1 interpolates linearly and fades over the outermost voxel.
        outside: value where there is no voxel.
    """
    from scipy import ndimage

    back = np.linalg.inv(held.affine) @ wanted.affine
    resampled: Array = ndimage.affine_transform(
        array, back, output_shape=wanted.shape_zyx, order=order, mode="grid-constant", cval=outside
    )
    return resampled


def _with_spacing(geometry: Geometry, spacing_mm_zyx: tuple[float, float, float]) -> Geometry:
    """Return the grid with other distances along the same directions, from the same first voxel."""
    affine = geometry.affine.copy()
    affine[:3, :3] *= np.array(spacing_mm_zyx) / np.array(geometry.spacing_mm_zyx)
    return Geometry(shape_zyx=geometry.shape_zyx, affine=affine)


def _along_body(oblique: Geometry) -> Geometry:
    """Return the grid along the body axes, of the same spacings, that covers all voxel centres."""
    shape, affine = vox2out_vox((oblique.shape_zyx, oblique.affine), oblique.spacing_mm_zyx)
    return Geometry(shape_zyx=(int(shape[0]), int(shape[1]), int(shape[2])), affine=affine)


def _oblique(geometry: Geometry, path: str) -> DataError:
    """Say how far the axes are tilted; slices and boxes along them would not mean what they say."""
    directions = geometry.affine[:3, :3] / np.array(geometry.spacing_mm_zyx)
    overlap = np.abs(directions.T @ directions - np.eye(3)).max()
    kind = "sheared" if overlap > np.sin(np.radians(TILT_LIMIT_DEGREES)) else "oblique"
    return DataError(
        f"{path}: the voxel axes are {kind}, {tilt_degrees(geometry):.1f}° off the body axes; at most "
        f"{TILT_LIMIT_DEGREES:g}° is read as it is. Set tilted = 'resample' on the data set to have it, and "
        f"masks on its grid, resampled onto a straight grid."
    )
