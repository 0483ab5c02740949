"""Boxes around a region, and the connected parts of a mask."""

from collections.abc import Sequence

import numpy as np
import scipy  # loads its parts when they are first asked for

from evidcore.api import Box
from evidcore.data import Mask

LEAST_SHARE = 0.1  # of the largest part's voxels: a part that is an object of its own


def tight_box(region: Mask, z: int) -> Box:
    """Return the box of a region of slice `z`, shape (y, x), not empty."""
    rows, columns = np.flatnonzero(region.any(axis=1)), np.flatnonzero(region.any(axis=0))
    return Box(z=z, y0=int(rows[0]), y1=int(rows[-1]) + 1, x0=int(columns[0]), x1=int(columns[-1]) + 1)


def moved(box: Box, by_yx: Sequence[float], shape_yx: tuple[int, ...]) -> Box:
    """Return a box that is moved by shares of its height and width; what leaves the slice is cut off.

    At least one voxel along each axis stays.
    """
    edges = []
    for start, stop, share, size in zip((box.y0, box.x0), (box.y1, box.x1), by_yx, shape_yx, strict=True):
        shift = round(share * (stop - start))
        first = min(max(0, start + shift), size - 1)
        edges.append((first, max(first + 1, min(size, stop + shift))))
    (y0, y1), (x0, x1) = edges
    return Box(z=box.z, y0=y0, y1=y1, x0=x0, x1=x1)


def parts(mask: Mask, least_voxels: int = 1) -> list[Mask]:
    """Return the connected parts of a mask, of a slice or in 3D, that are no specks beside the others.

    A part counts from a tenth of the largest part's voxels on, and from `least_voxels`; corners connect.
    """
    labels, count = scipy.ndimage.label(mask, structure=np.ones((3,) * mask.ndim))
    sizes = np.bincount(labels.reshape(-1), minlength=count + 1)
    least = max(least_voxels, LEAST_SHARE * sizes[1:].max(initial=0))
    return [labels == label for label in range(1, count + 1) if sizes[label] >= least]
