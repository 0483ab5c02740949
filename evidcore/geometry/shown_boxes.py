"""Boxes on a shown slice, x0, y0, x1, y1 in 0..1000, and the voxels of the source volume that they cover.

The origin of a box is the slice's corner at the patient's right and front; 1000 is the far edge of what was
shown, whatever its size in voxels.
"""

from __future__ import annotations

from collections.abc import Sequence

from evidcore.case import Box, Crop

FULL = 1000.0  # the far edge of what is shown
ShownBox = tuple[float, float, float, float]  # x0, y0, x1, y1 in 0..FULL


def is_slice(crop: Crop) -> bool:
    """Tell whether a crop is a single axial slice."""
    return crop.box_zyx is not None and crop.box_zyx[1] - crop.box_zyx[0] == 1


def slice_box(crop: Crop, box: Sequence[float | int]) -> Box:
    """Turn a shown box into voxels of the source volume; one thinner than a voxel becomes its voxel.

    Raises:
        ValueError: if the crop is no slice, or the box runs backwards or over the edge.
    """
    z, y0, y1, x0, x1 = _slice_edges(crop)
    if len(box) != 4:
        raise ValueError(f"a box has 4 numbers x0, y0, x1, y1, got {list(box)!r}")
    left, top, right, bottom = (float(edge) for edge in box)
    if not (0 <= left <= right <= FULL and 0 <= top <= bottom <= FULL):
        raise ValueError(
            f"the box {list(box)!r} must lie inside what was shown: 0 <= x0 <= x1 <= {FULL:g} and "
            f"0 <= y0 <= y1 <= {FULL:g}"
        )
    columns, rows = _voxels(left, right, x1 - x0), _voxels(top, bottom, y1 - y0)
    return Box(z=z, y0=y0 + rows[0], y1=y0 + rows[1], x0=x0 + columns[0], x1=x0 + columns[1])


def shown_box(crop: Crop, box: Box) -> ShownBox:
    """Turn voxels of the source volume into a shown box; `slice_box` takes its rounded edges back.

    Raises:
        ValueError: if the crop is no slice, or the box lies outside it.
    """
    z, y0, y1, x0, x1 = _slice_edges(crop)
    if box.z != z or not (y0 <= box.y0 < box.y1 <= y1 and x0 <= box.x0 < box.x1 <= x1):
        raise ValueError(f"{box} lies outside the slice shown, z={z}, y={y0}..{y1}, x={x0}..{x1}")
    wide, high = x1 - x0, y1 - y0
    left, right = ((edge - x0) * FULL / wide for edge in (box.x0, box.x1))
    top, bottom = ((edge - y0) * FULL / high for edge in (box.y0, box.y1))
    return left, top, right, bottom


def _slice_edges(crop: Crop) -> tuple[int, int, int, int, int]:
    """Return z, y0, y1, x0, x1 of a single-slice crop."""
    if crop.box_zyx is None or not is_slice(crop):
        raise ValueError(f"not a single slice: {crop.uri()!r}")
    z, _, y0, y1, x0, x1 = crop.box_zyx
    return z, y0, y1, x0, x1


def _voxels(low: float, high: float, count: int) -> tuple[int, int]:
    """Return start and stop, at least one voxel, of a stretch in 0..FULL over `count` voxels.

    Edges go to the nearest voxel edge: whole numbers in 0..1000 hit every edge of up to 1000 voxels exactly.
    """
    start, stop = (int(edge * count / FULL + 0.5) for edge in (low, high))
    if start == stop:
        start = min(int((low + high) / 2 * count / FULL), count - 1)
        stop = start + 1
    return start, stop
