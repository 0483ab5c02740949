"""Whether a label map was resampled as if its labels were values, and rounded.

Linear interpolation passes through labels 1 to 4 between 0 and 5, so that rims of these lie around objects.
Drawn maps have rims too, such as a wall between its lumen and the background; thresholds leave fat between
air and muscle. So a rim counts where its label is an object of its own elsewhere and seldom wide between the
same two, or where more labels are rims alone than anybody draws.
"""

import collections
from typing import Any

import numpy as np
from scipy import ndimage

PLANES = 48  # looked at along each axis
WIDE = 3  # voxels: wider is no rim; the map may have become finer threefold
FEWEST = 50  # rims
SHARE = 0.2  # of the steps by more than one label that lead through a rim; of drawn maps 0.02, of parcels 0.4
TIMES_OTHER = 2  # as many as thin parts whose number lies not between; of parcels of few voxels 1.1
TIMES_WIDE = 5  # as many as wide parts between the same labels; of tissues by thresholds 4
CORE = 2  # voxels that are taken off all around an object
SOLID = 0.4  # of an object lies within reach of its core
MOST_LABELS = 30  # that are looked at
SPURIOUS = 10  # labels without a core; retinas have as many layers, few of them so thin


def interpolated(labels: np.ndarray[Any, Any]) -> str | None:
    """Say how a map of whole numbers, three axes, leads through rims; None where it was not interpolated."""
    filled = [np.flatnonzero(labels.any(axis=others)) for others in ((1, 2), (0, 2), (0, 1))]
    if not all(map(len, filled)):
        return None
    labels = labels[tuple(slice(max(0, at[0] - 1), at[-1] + 2) for at in filled)]
    thin, wide = collections.Counter[int](), collections.Counter[int]()
    other = direct = 0
    for axis, across in ((0, 1), (1, 0), (2, 0)):
        places = np.unique(np.linspace(0, labels.shape[across] - 1, PLANES).astype(int))
        lines = np.moveaxis(np.take(labels, places, across), axis, -1)
        begins = np.ones(lines.shape, bool)
        begins[..., 1:] = lines[..., 1:] != lines[..., :-1]
        starts = np.flatnonzero(begins)
        run, line = lines.ravel()[starts].astype(np.int64), starts // lines.shape[-1]
        steps, is_thin = np.diff(run), np.diff(starts)[1:] <= WIDE
        turn = np.where(line[:-2] == line[2:], steps[:-1] * steps[1:], 0)  # above 0: the run lies between
        is_rim = np.pad((turn > 0) & is_thin, 1)
        thin.update(run[is_rim].tolist())
        wide.update(run[1:-1][(turn > 0) & ~is_thin].tolist())
        other += int(((turn < 0) & is_thin & (run[:-2] != run[2:])).sum())
        is_direct = (line[1:] == line[:-1]) & (np.abs(steps) > 1)
        direct += int((is_direct & ~is_rim[1:] & ~is_rim[:-1]).sum())
    total, solid, solid_wide, spurious = thin.total(), 0, 0, 0
    if total < max(FEWEST, SHARE * (total + direct), TIMES_OTHER * other):
        return None
    for label, count in thin.most_common(MOST_LABELS):
        inside = labels == label
        core = ndimage.binary_erosion(inside, iterations=CORE, border_value=1)  # cut off is not thin
        spurious += not core.any()
        if (ndimage.binary_dilation(core, iterations=CORE) & inside).sum() >= SOLID * inside.sum():
            solid, solid_wide = solid + count, solid_wide + wide[label]
    if solid < max(FEWEST, SHARE * (solid + direct), TIMES_WIDE * solid_wide) and spurious < SPURIOUS:
        return None
    share = f"{100 * total / (total + direct):.0f} % of the steps over more than one label"
    return f"{share} lead through a label between, of at most {WIDE} voxels"
