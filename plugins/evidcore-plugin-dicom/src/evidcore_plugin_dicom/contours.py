"""Contours of a DICOM structure set (RTSTRUCT), filled on their volume's grid."""

import numpy as np
from pydicom.dataset import Dataset

from evidcore.api import DataError
from evidcore.data import Array, Geometry, Mask
from evidcore_plugin_dicom.headers import read_dataset, shown

CLOSED = {"CLOSED_PLANAR", "CLOSEDPLANAR_XOR"}
OFF_SLICE = 0.25  # slices; coordinates are often rounded, and nearer than half way the slice is certain
HALF_WAY = 0.5  # slices beyond the outermost; farther out, the nearest slice is none of the volume
OUTSIDE = 1.0  # voxels beyond the outermost centre; a contour along the edge runs half a voxel outside


def read_contours(path: str, number: int, onto: Geometry) -> Mask:
    """Return one region, shape (z, y, x) on `onto`: the voxels whose centres its contours enclose.

    On each slice a contour within another cuts a hole (even-odd rule). A region without contours is empty.

    Raises:
        DataError: if its contours are not closed, lie between slices or outside the grid.
    """
    contours = _contours(path, number)
    mask = np.zeros(onto.shape_zyx, dtype=np.bool_)
    if not contours:
        return mask
    back = np.linalg.inv(onto.affine)
    places = [contour[:, ::-1] @ back[:3, :3].T + back[:3, 3] for contour in contours]  # z, y, x in voxels
    across = int(np.max([np.ptp(place, axis=0) for place in places], axis=0).argmin())
    _refuse_off_grid(places, across, onto, path)
    slices = np.moveaxis(mask, across, 0)  # a view: filling it fills the mask
    for place in places:
        number_of_slice = round(float(place[:, across].mean()))
        slices[number_of_slice] ^= fill(np.delete(place, across, axis=1), slices.shape[1:])
    return mask


def fill(corners: Array, shape: tuple[int, ...]) -> Mask:
    """Return the grid points (row, column) inside a polygon by the even-odd rule.

    Args:
        corners: (corner, 2) as row and column, in grid steps; the last is joined to the first.
        shape: rows and columns.
    """
    here, there = corners, np.roll(corners, -1, axis=0)
    first = np.ceil(np.minimum(here[:, 0], there[:, 0])).astype(int)
    stop = np.ceil(np.maximum(here[:, 0], there[:, 0])).astype(int)  # an edge owns its lower end alone
    edge = np.repeat(np.arange(len(corners)), stop - first)  # once for each row that it crosses
    before = np.cumsum(stop - first) - (stop - first)
    row = first[edge] + np.arange(edge.size) - before[edge]
    rise = there[edge] - here[edge]
    crossing = here[edge, 1] + (row - here[edge, 0]) * rise[:, 1] / rise[:, 0]
    column = np.clip(np.ceil(crossing).astype(int), 0, shape[1])
    is_inside = (row >= 0) & (row < shape[0])
    crossed = np.zeros((shape[0], shape[1] + 1), dtype=np.int64)
    np.add.at(crossed, (row[is_inside], column[is_inside]), 1)
    filled: Mask = crossed[:, :-1].cumsum(axis=1) % 2 == 1
    return filled


def _contours(path: str, number: int) -> list[Array]:
    """Return the corners of each contour of a region, (corner, 3) as x, y, z in mm."""
    regions = read_dataset(path).get("ROIContourSequence") or ()
    drawn = [region.get("ContourSequence") for region in regions if int(region.ReferencedROINumber) == number]
    return [_corners(contour, path, number) for contours in drawn for contour in contours or ()]


def _corners(contour: Dataset, path: str, number: int) -> Array:
    kind = contour.get("ContourGeometricType")
    if kind not in CLOSED:
        raise DataError(
            f"{path}: region {number} has a contour of type {shown(kind)}, which encloses nothing; expected "
            f"{' or '.join(sorted(CLOSED))}. Draw it closed, or leave the region out."
        )
    try:
        corners = np.array([float(value) for value in contour.ContourData]).reshape(-1, 3)
    except (AttributeError, TypeError, ValueError):
        corners = np.empty((0, 3))
    if len(corners) < 3 or not np.isfinite(corners).all():
        raise DataError(
            f"{path}: region {number} has a contour of {len(corners)} readable corners, expected at least 3, "
            f"each x, y, z. Export the structure set again."
        )
    return corners


def _refuse_off_grid(places: list[Array], across: int, onto: Geometry, path: str) -> None:
    for place in places:
        index = place[:, across]
        off = float(np.abs(index - np.round(index.mean())).max())
        if off > OFF_SLICE:
            raise DataError(
                f"{path}: a contour lies {off:.2f} slices off the nearest slice of its volume {onto}; at "
                f"most {OFF_SLICE} is read. Name the volume that it was drawn on."
            )
    beyond = np.full(3, OUTSIDE)
    beyond[across] = HALF_WAY
    ends = np.array(onto.shape_zyx) - 1 + beyond
    outside = [place for place in places if (place < -beyond).any() or (place > ends).any()]
    if outside:
        raise DataError(
            f"{path}: {len(outside)} of {len(places)} contours lie outside the volume {onto}. "
            f"Name the volume that they were drawn on."
        )
