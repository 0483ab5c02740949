"""How sharp a scan is: its point spread within a slice, measured where skin meets air."""

from __future__ import annotations

import numpy as np

from evidcore.formats import Array
from evidcore.volume import Volume

ASSUMED_FWHM_MM = 1.2  # of a soft-tissue kernel; taken where the scan shows no skin against air
AIR_HU, SKIN_HU = -900.0, -250.0
HALF_STEPS = 3  # voxels on either side of an edge
FEWEST_EDGES = 50
STEEPEST = 0.9  # quantile: edges that a line meets at a right angle are the steepest
FWHM = 2 * np.sqrt(2 * np.log(2))  # of a Gaussian, in standard deviations


def point_spread_mm(volume: Volume) -> tuple[float, bool]:
    """Return the point spread's standard deviation within a slice, and whether it was measured.

    At an edge of height h, a Gaussian spread of s mm makes the largest step between neighbours d mm apart
    h * erf(d / (2 sqrt(2) s)). The voxel's own width, which the step shows too, is taken off.
    """
    from scipy.special import erfinv

    _, dy, dx = volume.spacing_mm_zyx
    stride = max(1, volume.shape_zyx[0] // 40)
    found = []
    for axis, step in ((1, dy), (2, dx)):
        shares = _steepest_shares(np.moveaxis(volume.array[::stride], axis, -1).astype(np.float32))
        if shares.size >= FEWEST_EDGES:
            share = min(float(np.quantile(shares, STEEPEST)), 0.999)
            spread = step / (2 * np.sqrt(2) * float(erfinv(share)))
            found.append(max(0.0, spread**2 - step**2 / 12))
    if not found:
        return ASSUMED_FWHM_MM / FWHM, False
    return float(np.sqrt(np.mean(found))), True


def _steepest_shares(lines: Array) -> Array:
    """Return the largest step of each edge along the last axis, as a share of the edge's height."""
    width = 2 * HALF_STEPS
    if lines.shape[-1] <= width:
        return np.zeros(0)
    shares = []
    for way in (lines, lines[..., ::-1]):
        steps = np.diff(way, axis=-1)
        low, high = way[..., :-width], way[..., width:]
        places = np.stack([steps[..., offset : offset + low.shape[-1]] for offset in range(width)])
        middle = places[HALF_STEPS]
        is_edge = (low < AIR_HU) & (high > SKIN_HU) & (high < 200) & (middle == places.max(axis=0))
        is_edge &= places.min(axis=0) > -0.05 * (high - low)  # rises all the way
        height = (high - low)[is_edge]
        shares.append(middle[is_edge] / height)
    return np.concatenate(shares)
