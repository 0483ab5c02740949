"""Images of a series to one grid, or the reason why they form none."""

from pathlib import Path

import numpy as np

from evidcore.api import DataError
from evidcore.data import Array, FileGrid
from evidcore.data.grid import SAME_GRID_VOXELS
from evidcore_plugin_dicom.frames import Frame

SAME_DIRECTION = 1e-3  # of a unit vector: half a pixel over 512
SAME_PLACE_MM = 1e-3


def stack(frames: list[Frame], path: str) -> tuple[list[Frame], FileGrid]:
    """Put the images in order along their normal and return them with their grid (column, row, image).

    The way from image to image need not run along the normal: under a tilted gantry it leans, and so does the
    grid.

    Raises:
        DataError: if they differ in size, direction or pixel spacing, or two lie at one place, or one is
            missing, or they lie at unequal distances.
    """
    first = frames[0]
    for other in frames[1:]:
        pairs = (
            ("size", (first.columns, first.rows), (other.columns, other.rows), 0.0),
            ("direction", _directions(first), _directions(other), SAME_DIRECTION),
            ("pixel spacing", _gaps(first), _gaps(other), SAME_DIRECTION * min(_gaps(first))),
        )
        for what, here, there, allowed in pairs:
            if np.abs(np.subtract(here, there)).max() > allowed:
                where = f"{_text(here)} in {Path(first.path).name}, {_text(there)} in {Path(other.path).name}"
                why = f"the images of the series differ in {what}: {where}"
                raise DataError(f"{path}: {why}. Move localizers and other images out of the folder.")
    if len(frames) < 2:
        why = f"is a 2D image, {first.columns}x{first.rows} in a series of 1; a volume has at least 2 images"
        raise DataError(f"{path}: {why}. Name the folder of the whole series.")
    along = np.array([frame.place @ first.normal for frame in frames])
    order = np.argsort(along, kind="stable")
    ordered = [frames[number] for number in order]
    same = np.flatnonzero(np.diff(along[order]) < SAME_PLACE_MM)
    if same.size:
        why = f"{same.size} of {len(ordered)} images lie where another does"
        names = f"{_name(ordered[same[0]])} and {_name(ordered[same[0] + 1])}"
        where = f"{along[order][same[0]]:.2f} mm along the normal: {names}"
        raise DataError(f"{path}: {why}, the first at {where}. Leave one copy, phase or echo in the folder.")
    places = np.array([frame.place for frame in ordered])
    step = (places[-1] - places[0]) / (len(ordered) - 1)
    affine = np.eye(4)
    affine[:3, 0] = first.along_row * first.column_gap_mm
    affine[:3, 1] = first.down_column * first.row_gap_mm
    affine[:3, 2] = step
    affine[:3, 3] = places[0]
    _refuse_unequal(places, along[order], affine, path)
    return ordered, FileGrid(shape=(first.columns, first.rows, len(ordered)), affine=affine)


def _refuse_unequal(places: Array, along: Array, affine: Array, path: str) -> None:
    """Stop where an image lies more than a tenth of a voxel from its place in the grid."""
    wanted = affine[:3, 3] + np.arange(len(places))[:, None] * affine[:3, 2]
    off = np.linalg.solve(affine[:3, :3], (places - wanted).T)  # in voxels: column, row, image
    if np.abs(off).max() <= SAME_GRID_VOXELS:
        return
    gaps = np.diff(along)
    usual = float(np.percentile(gaps, 50, method="lower"))  # one that occurs
    counts = gaps / usual
    wide = np.flatnonzero(np.round(counts) > 1)
    if wide.size and np.abs(counts - np.round(counts)).max() <= SAME_GRID_VOXELS:
        missing = int(np.round(counts[wide]).sum() - wide.size)
        why = f"{missing} of {len(along) + missing} images are missing, the first between"
        where = f"{along[wide[0]]:.2f} and {along[wide[0] + 1]:.2f} mm along the normal, where images lie"
        raise DataError(f"{path}: {why} {where} {usual:.2f} mm apart. Copy the series again.")
    if gaps.max() - gaps.min() > SAME_GRID_VOXELS * usual:
        why = f"the images lie at unequal distances, {gaps.min():.2f} to {gaps.max():.2f} mm along the normal"
        remedy = "Resample the series to equal ones, or take the reconstruction that has them."
        raise DataError(f"{path}: {why}. {remedy}")
    place = int(np.abs(off).max(axis=0).argmax())
    why = f"the images do not lie in a row: the one at {along[place]:.2f} mm along the normal"
    far = f"{np.abs(off[:, place]).max():.2f} voxels off"
    raise DataError(f"{path}: {why} is {far}. Take the reconstruction that is straight.")


def _directions(frame: Frame) -> tuple[float, ...]:
    return (*map(float, frame.along_row), *map(float, frame.down_column))


def _gaps(frame: Frame) -> tuple[float, float]:
    return frame.row_gap_mm, frame.column_gap_mm


def _text(values: tuple[float, ...]) -> str:
    return "(" + ", ".join(f"{value:g}" for value in values) + ")"


def _name(frame: Frame) -> str:
    name = Path(frame.path).name
    return name if frame.group is None else f"{name} frame {frame.number + 1}"
