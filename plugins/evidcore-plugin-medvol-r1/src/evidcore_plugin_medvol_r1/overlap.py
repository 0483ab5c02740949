"""How far two masks, two boxes or two sets of boxes agree."""

from collections.abc import Sequence

import numpy as np
import scipy  # loads its parts when they are first asked for

from evidcore.api import Box
from evidcore.data import Mask


def mask_overlap(one: Mask, other: Mask) -> tuple[float, float] | None:
    """Return Dice and intersection over union of two masks of one shape; None where both are empty.

    Raises:
        ValueError: if the shapes differ.
    """
    if one.shape != other.shape:
        raise ValueError(f"masks of one shape can be compared, got {one.shape} and {other.shape}")
    both, first, second = (int(np.count_nonzero(mask)) for mask in (one & other, one, other))
    if first + second == 0:
        return None
    return 2 * both / (first + second), both / (first + second - both)


def box_iou(one: Box, other: Box) -> float:
    """Return intersection over union of two boxes in voxels; boxes on different slices share nothing."""
    if one.z != other.z:
        return 0.0
    high = min(one.y1, other.y1) - max(one.y0, other.y0)
    wide = min(one.x1, other.x1) - max(one.x0, other.x0)
    shared = max(high, 0) * max(wide, 0)
    return shared / (_area(one) + _area(other) - shared)


def matched_iou(found: Sequence[Box], wanted: Sequence[Box]) -> float:
    """Return the best total IoU of boxes paired one to one, over the larger number of boxes; 0 without any.

    Source:
        Kuhn 1955, The Hungarian method for the assignment problem, Naval Research Logistics Quarterly 2.
    """
    if not found or not wanted:
        return 0.0
    table = np.array([[box_iou(item, other) for other in wanted] for item in found])
    shared = table[scipy.optimize.linear_sum_assignment(table, maximize=True)].sum()
    return float(shared) / max(len(found), len(wanted))


def _area(box: Box) -> int:
    return (box.y1 - box.y0) * (box.x1 - box.x0)
