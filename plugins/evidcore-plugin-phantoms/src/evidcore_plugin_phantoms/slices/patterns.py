"""Four patterns of a small lesion that weigh the same: what tells them apart is finer than 8 pixels.

Averaging over 8 x 8 pixels keeps how much a lesion changes and, where the edge of an average cuts through it,
how far out it does so. So each pattern has the same sum, and the same second moment as a disc of its radius,
r² / 4 along every axis: the sizes below are shares of the radius that give it. Centre and angle are drawn for
each lesion, so that no pattern has a place of its own among the averages.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Shares = np.ndarray[Any, np.dtype[np.float64]]

# each pattern with the finding that has it
FINDING_OF = {
    "solid": "solid lesion",
    "ring": "ring lesion",
    "stripes": "striped lesion",
    "dots": "dotted lesion",
}
PATTERNS = tuple(FINDING_OF)
LARGEST_PX = 5.0  # in radius; at 6 the best reader of averages over 8 x 8 pixels is right in 36 of 100
SMALLEST_PX = 4.0  # in radius; smaller ones have stripes and gaps of about a pixel, which the blur takes
RING = (0.40, 0.92)  # inner and outer radius
STRIPES = (-0.63, 0.0, 0.63)  # their middles; as far as the disc reaches
STRIPE_WIDTH = 0.31
DOTS = ((0.0, 0.0), *((0.75 * np.cos(turn), 0.75 * np.sin(turn)) for turn in np.arange(6) * np.pi / 3))
DOT_RADIUS = 0.20
SIDE_PX = 19  # of a drawn pattern: a radius of 8, above what is offered, its centre half a pixel off
FINER = 8  # points of a pixel along each axis


def shares(pattern: str, radius_px: float, offset_yx: tuple[float, float], angle: float) -> Shares:
    """Return what each pixel has of a lesion, shape (y, x), 19 x 19 pixels; the sum is 1.

    Args:
        pattern: one of `PATTERNS`.
        radius_px: of the disc in which the pattern lies, at most 8.
        offset_yx: of the disc's centre from the middle pixel's, in pixels, at most 0.5 either way.
        angle: by which stripes and dots are turned, in radians.
    """
    y, x = _points(offset_yx, radius_px)
    u, v = x * np.cos(angle) + y * np.sin(angle), y * np.cos(angle) - x * np.sin(angle)
    distance = np.hypot(y, x)
    if pattern == "solid":
        region = distance <= 1
    elif pattern == "ring":
        region = (distance > RING[0]) & (distance <= RING[1])
    elif pattern == "stripes":
        beside = np.min([np.abs(u - middle) for middle in STRIPES], axis=0)
        region = (beside <= STRIPE_WIDTH / 2) & (distance <= 1)
    else:
        region = np.min([np.hypot(u - at_u, v - at_v) for at_u, at_v in DOTS], axis=0) <= DOT_RADIUS
    covered = _averaged(region)
    return np.asarray(covered / covered.sum())


def disc(radius_px: float, offset_yx: tuple[float, float]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return the pixels that the disc of a lesion covers by half, shape (y, x), 19 x 19 pixels."""
    y, x = _points(offset_yx, radius_px)
    return np.asarray(_averaged(np.hypot(y, x) <= 1) >= 0.5)


def _points(offset_yx: tuple[float, float], radius_px: float) -> tuple[Shares, Shares]:
    """Return how far points finer than pixels lie from the centre, in radii, shapes (y, 1) and (1, x)."""
    at = (np.arange(SIDE_PX * FINER) + 0.5) / FINER - SIDE_PX / 2
    return (at - offset_yx[0])[:, None] / radius_px, (at - offset_yx[1])[None, :] / radius_px


def _averaged(region: np.ndarray[Any, np.dtype[np.bool_]]) -> Shares:
    return np.asarray(region.reshape(SIDE_PX, FINER, SIDE_PX, FINER).mean(axis=(1, 3)), dtype=np.float64)
