"""Contours of a DICOM structure set (RTSTRUCT), filled on their volume's grid."""

import numpy as np
from pydicom.dataset import Dataset

from evidcore.api import DataError
from evidcore.data import Array, Geometry, Mask
from evidcore.data.masks import left_out
from evidcore_plugin_dicom.headers import read_dataset, shown

XOR = "CLOSEDPLANAR_XOR"
CLOSED = {"CLOSED_PLANAR", XOR}
OFF_SLICE = 0.25  # slices; coordinates are often rounded, and nearer than half way the slice is certain
HALF_WAY = 0.5  # slices beyond the outermost; farther out, the nearest slice is none of the volume
SAME_PLANE_MM = 0.1  # coordinates are rounded; farther apart, contours were drawn on two planes
MOST_CROSSINGS = 10**8  # of edges and rows; a large region has a million
OUTSIDE = 1.0  # voxels beyond the outermost centre; a contour along the edge runs half a voxel outside


def read_contours(path: str, number: int, onto: Geometry) -> Mask:
    """Return one region, shape (z, y, x) on `onto`: the voxels whose centres its contours enclose.

    On its plane a contour within others cuts a hole, CLOSEDPLANAR_XOR any overlap; else they are united, as
    are planes that lie on one slice. A region without contours is empty. What lies between contours is not
    guessed: SlicerRT joins them (Sunderland et al. 2015), others leave the slices between them empty.

    Raises:
        DataError: if its contours are not closed, lie between slices or outside the grid, leave slices out or
            are endless.
    """
    regions = read_dataset(path).get("ROIContourSequence") or ()
    ours = [region for region in regions if int(region.ReferencedROINumber) == number]
    contours = [contour for region in ours for contour in region.get("ContourSequence") or ()]
    mask = np.zeros(onto.shape_zyx, dtype=np.bool_)
    if not contours:
        return mask
    back = np.linalg.inv(onto.affine)
    places = [_corners(item, path, number)[:, ::-1] @ back[:3, :3].T + back[:3, 3] for item in contours]
    across = int(np.max([np.ptp(place, axis=0) for place in places], axis=0).argmin())
    heights = np.array([place[:, across].mean() for place in places])  # in slices
    off = max(float(np.abs(place[:, across] - round(place[:, across].mean())).max()) for place in places)
    if off > OFF_SLICE:
        why = f"a contour lies {off:.2f} slices off the nearest slice of its volume {onto}"
        raise DataError(f"{path}: {why}; at most {OFF_SLICE} is read. Name the volume that it was drawn on.")
    beyond = np.where(np.arange(3) == across, HALF_WAY, OUTSIDE)
    ends = np.array(onto.shape_zyx) - 1 + beyond
    outside = sum(bool((place < -beyond).any() or (place > ends).any()) for place in places)
    if outside:
        why = f"{outside} of {len(places)} contours lie outside the volume {onto}"
        raise DataError(f"{path}: {why}. Name the volume that they were drawn on.")
    drawn = [np.delete(place, across, axis=1) for place in places]
    if sum(np.abs(np.diff(corners[:, 0])).sum() for corners in drawn) > MOST_CROSSINGS:
        why = f"region {number} crosses the rows of its volume more than {MOST_CROSSINGS} times"
        raise DataError(f"{path}: {why}, which no outline does. Export the structure set again.")
    slices = np.moveaxis(mask, across, 0)  # a view: filling it fills the mask
    order = np.argsort(heights)
    apart = np.diff(heights[order]) > min(SAME_PLANE_MM / onto.spacing_mm_zyx[across], OFF_SLICE)
    for plane in np.split(order, np.flatnonzero(apart) + 1):
        filled, seen = np.zeros(slices.shape[1:], dtype=np.bool_), set[int]()
        for i in sorted(plane, key=lambda i: -_area(drawn[i])):
            inside = fill(drawn[i], filled.shape)
            is_new = hash(inside.tobytes()) not in seen  # one that was exported twice is filled once
            if contours[i].ContourGeometricType == XOR or (is_new and filled[inside].all()):
                filled ^= inside
            elif is_new:
                filled |= inside
            seen.add(hash(inside.tobytes()))
        slices[round(float(heights[plane[0]]))] |= filled
    if between := left_out(mask, across):
        why = f"region {number} was drawn on one of {between + 1} slices, and goes on in those between them"
        remedy = "Name the volume that it was drawn on, or interpolate it where it was drawn, to every slice."
        raise DataError(f"{path}: {why}. {remedy}")
    return mask


def _area(corners: Array) -> float:
    row, column = (corners - corners[0]).T
    return abs(float(row @ np.roll(column, 1) - column @ np.roll(row, 1))) / 2


def fill(corners: Array, shape: tuple[int, ...]) -> Mask:
    """Return the grid points (row, column) inside a polygon by the even-odd rule.

    Args:
        corners: (corner, 2) as row and column, in grid steps; the last is joined to the first.
        shape: rows and columns.
    """
    crossed = np.zeros((shape[0], shape[1] + 1), dtype=np.int64)
    rows = np.clip(np.ceil(corners[:, 0]), 0, shape[0]).astype(int)
    for part in np.array_split(np.arange(len(corners)), len(corners) * shape[0] // (1 << 20) + 1):
        ends = (part + 1) % len(corners)
        first, count = np.minimum(rows[part], rows[ends]), np.abs(rows[ends] - rows[part])
        edge = np.repeat(np.arange(part.size), count)  # once for each row; it owns its lower end alone
        row = np.arange(edge.size) + (first - np.cumsum(count) + count)[edge]
        here, rise = corners[part][edge], (corners[ends] - corners[part])[edge]
        column = np.ceil(here[:, 1] + (row - here[:, 0]) * rise[:, 1] / rise[:, 0])
        np.add.at(crossed, (row, np.clip(column, 0, shape[1]).astype(int)), 1)
    filled: Mask = crossed[:, :-1].cumsum(axis=1) % 2 == 1
    return filled


def _corners(contour: Dataset, path: str, number: int) -> Array:
    kind = contour.get("ContourGeometricType")
    if kind not in CLOSED:
        why = f"region {number} has a contour of type {shown(kind)}, which encloses nothing"
        expected = " or ".join(sorted(CLOSED))
        raise DataError(f"{path}: {why}; expected {expected}. Draw it closed, or leave the region out.")
    try:
        corners = np.array([float(value) for value in contour.ContourData]).reshape(-1, 3)
    except (AttributeError, TypeError, ValueError):
        corners = np.empty((0, 3))
    if len(corners) < 3 or not np.isfinite(corners).all():
        why = f"region {number} has a contour of {len(corners)} readable corners"
        raise DataError(f"{path}: {why}, expected at least 3, each x, y, z. Export the structure set again.")
    return corners
