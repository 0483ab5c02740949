"""The turn from a file's axes to the body's; oblique and sheared axes are refused, or resampled once."""

from __future__ import annotations

import dataclasses

import nibabel as nib
import numpy as np
from nibabel.orientations import inv_ornt_aff
from nibabel.spaces import vox2out_vox

from evidcore.case import VolumeRef
from evidcore.data.grid import Array, FileGrid, Geometry, Source
from evidcore.errors import DataError

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
    """Work out the grid of a volume from that of its file."""
    turn = turn_to_body(grid, ref.path)
    meant = geometry = turn.geometry
    if ref.spacing_mm_zyx is not None:
        affine = meant.affine.copy()
        affine[:3, :3] *= np.array(ref.spacing_mm_zyx) / np.array(meant.spacing_mm_zyx)
        meant = geometry = Geometry(shape_zyx=meant.shape_zyx, affine=affine)
    if tilt_degrees(meant) > TILT_LIMIT_DEGREES:
        if ref.tilted == "refuse":
            kind = "sheared" if is_sheared(meant.affine[:3, :3]) else "oblique"
            raise DataError(  # slices and boxes along the axes would not mean what they say
                f"{ref.path}: the voxel axes are {kind}, {tilt_degrees(meant):.1f}° off the body axes; at "
                f"most {TILT_LIMIT_DEGREES:g}° is read as it is. Set tilted = 'resample' on the data set to "
                f"have it, and masks on its grid, resampled onto a straight grid."
            )
        # the grid along the body axes, of the same spacings, that covers all voxel centres
        (z, y, x), affine = vox2out_vox((meant.shape_zyx, meant.affine), meant.spacing_mm_zyx)
        geometry = Geometry(shape_zyx=(int(z), int(y), int(x)), affine=affine)
    return Placement(turn=turn, meant=meant, geometry=geometry)


def tilt_degrees(geometry: Geometry) -> float:
    """Return the largest angle between a voxel axis and its body axis."""
    along = np.diag(geometry.affine)[:3] / np.array(geometry.spacing_mm_zyx)
    return float(np.degrees(np.arccos(np.clip(along, -1.0, 1.0))).max())


def resample(array: Array, geometry: Geometry, wanted: Geometry, *, order: int, outside: float) -> Array:
    """Return the values of `array` on `geometry` at the voxels of `wanted`, in the same type.

    Order 0 takes the nearest voxel, 1 interpolates linearly and fades over the outermost voxel to `outside`.
    """
    from scipy import ndimage

    back = np.linalg.inv(geometry.affine) @ wanted.affine
    resampled: Array = ndimage.affine_transform(
        array, back, output_shape=wanted.shape_zyx, order=order, mode="grid-constant", cval=outside
    )
    return resampled


def is_sheared(steps: Array) -> bool:
    """Tell whether two voxel axes, columns in mm, stand farther from a right angle than may be overlooked."""
    directions = steps / np.linalg.norm(steps, axis=0)
    overlap = np.abs(directions.T @ directions - np.eye(3)).max()
    return bool(overlap > np.sin(np.radians(TILT_LIMIT_DEGREES)))


# Letter to body axis (0 x, 1 y, 2 z) and sense; x runs to the left, y to posterior, z to superior.
LETTERS = {"L": (0, 1), "R": (0, -1), "P": (1, 1), "A": (1, -1), "S": (2, 1), "I": (2, -1)}
MOST_MM = 1e6  # a kilometre: no place in any scanner's room, in micrometres neither
LEAST_VOLUME = 1e-3  # of the unit directions; below, three axes span no space


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Turn:
    """The way from a file's axes to ours, as nibabel says it: for each, ours (0 z, 1 y, 2 x) and 1 or -1."""

    orientation: Array  # -1 where it runs backwards
    geometry: Geometry

    def apply(self, array: Array) -> Array:
        """Return `array`, indexed as in the file, as a (z, y, x) view."""
        turned: Array = nib.apply_orientation(array, self.orientation)
        return turned

    def undo(self, array: Array) -> Array:
        """Return a (z, y, x) array as a view that is indexed as in the file."""
        back = np.argsort(self.orientation[:, 0])
        turned: Array = nib.apply_orientation(array, np.column_stack([back, self.orientation[back, 1]]))
        return turned


def turn_to_body(grid: FileGrid, path: str) -> Turn:
    """Work out which of a file's axes runs along which of the body's; they may be oblique."""
    columns = grid.affine[:3, :3]
    steps_mm = np.linalg.norm(columns, axis=0)
    if not (np.abs(grid.affine) < MOST_MM).all() or not (steps_mm > 0).all():  # NaN is not below
        raise DataError(
            f"{path}: the affine must be finite, below {MOST_MM:g} mm and with spacings above 0 mm, got "
            f"spacings {[round(float(step), 4) for step in steps_mm]} and the origin "
            f"{[round(float(at), 4) for at in grid.affine[:3, 3]]}. Write the file again with a right header."
        )
    nearest = nib.io_orientation(grid.affine)  # for each file axis: 0 x, 1 y, 2 z; and 1 or -1
    if np.isnan(nearest).any() or abs(np.linalg.det(columns / steps_mm)) < LEAST_VOLUME:
        raise DataError(
            f"{path}: the voxel axes lie in one plane, directions "
            f"{(columns / steps_mm).round(3).T.tolist()}. Write the file again with a right header."
        )
    orientation = np.column_stack([2 - nearest[:, 0], nearest[:, 1]])
    affine = (grid.affine @ inv_ornt_aff(orientation, grid.shape))[[2, 1, 0, 3]]  # rows x, y, z to z, y, x
    z, y, x = (grid.shape[axis] for axis in np.argsort(orientation[:, 0]))
    return Turn(orientation=orientation, geometry=Geometry(shape_zyx=(z, y, x), affine=affine))


def body_axes(axes: str, path: str) -> list[tuple[int, int]]:
    """Return for each axis of an array the body axis (0 x, 1 y, 2 z) that it runs along, and its sense."""
    result = [LETTERS.get(letter, (-1, 0)) for letter in axes]
    if sorted(body for body, _ in result) != [0, 1, 2]:
        raise DataError(
            f"{path}: axes must name each body axis once, of L or R, P or A, S or I, got {axes!r}. "
            f"Write for instance 'SPL'."
        )
    return result


def turned_to_body(array: Array, axes: str, path: str) -> Array:
    """Turn an array whose axes run to `axes` so that they run to z, y, x: superior, posterior, left."""
    orientation = [(2 - body, sense) for body, sense in body_axes(axes, path)]
    turned: Array = nib.apply_orientation(array, orientation)
    return turned
