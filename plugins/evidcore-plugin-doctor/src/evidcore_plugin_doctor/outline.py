"""Whether a mask lies on its object: its outline follows edges of the scan, and that of no mirror image does.

An object whose outline does not show (a tumour in muscle, on CT) says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import ndimage

from evidcore.data import Volume

Mask = np.ndarray[Any, np.dtype[np.bool_]]

SLICES = 12  # looked at
MARGIN = 8  # pixels around the mask
FEWEST = 50  # pixels of outline, and within
SIGMA = 1.0  # pixels
CLIP_HU = (-200.0, 300.0)
UNFIT = 1.5  # median slope along the outline to that within: misplaced masks stay at 0.8 to 1.5
FIT = 1.8  # masks in place, of objects whose outline shows, have 1.9 to 9
TIMES = 1.3  # as much as the mask's own


def better_turn(volume: Volume, mask: Mask) -> str | None:
    """Return how a mask must be turned to lie on an object, None where it lies well or nothing is clear.

    Args:
        volume: whose grid the mask lies on.
        mask: (z, y, x), not empty.
    """
    own = _fit(volume, mask)
    if own is None or own >= UNFIT:
        return None
    fits = {how: fit for how, turned in _turns(mask) if (fit := _fit(volume, turned)) is not None}
    if not fits:
        return None
    best = max(fits, key=lambda how: fits[how])
    if fits[best] < max(FIT, TIMES * own):
        return None
    return (
        f"its outline follows no edge of the scan ({own:.2f} times the slope within), and {best} it does "
        f"({fits[best]:.2f} times)"
    )


def _turns(mask: Mask) -> Iterator[tuple[str, Mask]]:
    for axis, name in enumerate("zyx"):
        yield f"with {name} mirrored", np.flip(mask, axis)
    if mask.shape[1] == mask.shape[2]:
        yield "with x and y exchanged", mask.transpose(0, 2, 1)


def _fit(volume: Volume, mask: Mask) -> float | None:
    """Return how much steeper values change along a mask's outline than within it; None if it is small."""
    slices, rows, columns = (np.flatnonzero(mask.any(axis=axes)) for axes in ((1, 2), (0, 2), (0, 1)))
    taken = np.unique(slices[np.linspace(0, len(slices) - 1, SLICES).astype(int)])
    within = tuple(slice(max(0, int(at[0]) - MARGIN), int(at[-1]) + MARGIN + 1) for at in (rows, columns))
    pieces, values = mask[taken][:, *within], volume.array[taken][:, *within].astype(np.float32)
    if volume.intensity == "hu":
        values = np.clip(values, *CLIP_HU)
    across = [
        ndimage.gaussian_filter(values, (0, SIGMA, SIGMA), order=order) for order in ((0, 1, 0), (0, 0, 1))
    ]
    slope = np.hypot(*across)
    cross = ndimage.generate_binary_structure(2, 1)[None]
    core = ndimage.binary_erosion(pieces, cross, border_value=1)
    edge = ndimage.binary_dilation(pieces, cross) & ~core
    if min(core.sum(), edge.sum()) < FEWEST:
        return None
    inner = float(np.median(slope[core]))  # medians: the skin that a misplaced outline crosses does not count
    return float(np.median(slope[edge])) / inner if inner > 0 else None
