"""How a learning rate changes over a fit."""

from __future__ import annotations

import math

WARM_UP_STEPS = 60


def share_of_peak(step: int, steps: int) -> float:
    """Return the share of the peak learning rate at a step: a linear rise, then half a cosine down to 0."""
    warm = min(1.0, (step + 1) / min(WARM_UP_STEPS, max(1, steps // 4)))
    return warm * 0.5 * (1 + math.cos(math.pi * step / steps))
