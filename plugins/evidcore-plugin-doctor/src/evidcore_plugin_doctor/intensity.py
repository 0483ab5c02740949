"""Whether the values of a CT are Hounsfield units: air at -1000, soft tissue around 0 to 80.

Scanners fill the corners outside the circle with values of their own (-2000, -2048, -3024), so the lowest
value proves nothing; where the tissue lies does.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from evidcore.volume import Volume
from evidcore_plugin_doctor.fault import Severity

SAMPLE = 400_000  # voxels looked at
INTERCEPT_HU = 1024.0  # nearly every scanner's; some write 1000
SHARE = 0.10  # of the voxels that soft tissue has at least, wherever it lies
LITTLE = 0.02
FAT_TWICE_HU = (-1200.0, -1090.0)  # fat under the intercept applied twice; noise of air seldom reaches it

Said = tuple[Severity, str]
_REMEDY = 'Write the values as HU once, or set intensity = "arbitrary" on the data set.'


def not_hounsfield(volume: Volume) -> Said | None:
    """Say why the values are no Hounsfield units, None where they may be."""
    sample = _sample(volume)
    low, high = float(sample.min()), float(sample.max())
    if low == high:
        return None  # said elsewhere
    if low >= -1.5 and high <= 1.5:
        return "error", f"values run from {low:g} to {high:g}: scaled to a unit range, not HU. {_REMEDY}"
    if low >= 0 and high <= 255:
        return "error", f"values run from {low:g} to {high:g}: a windowed picture, not HU. {_REMEDY}"
    tissue = _share(sample, -200, 200)
    if (
        tissue < LITTLE
        and _share(sample, -200 - INTERCEPT_HU, 200 - INTERCEPT_HU) > SHARE
        and max(_share(sample, -np.inf, -1500), _share(sample, *FAT_TWICE_HU)) > LITTLE
    ):
        peak = _peak(sample, -200 - INTERCEPT_HU, 200 - INTERCEPT_HU)
        return (
            "error",
            f"soft tissue lies at {peak:.0f} HU and the lowest value is {low:g}: the intercept was applied "
            f"twice. Soft tissue lies at 0 to 80 HU. Add {INTERCEPT_HU:.0f}, or convert the series again.",
        )
    if np.quantile(sample, 0.001) > -100 and _share(sample, 850, 1250) > SHARE:
        peak = _peak(sample, 850, 1250)
        return (
            "error",
            f"soft tissue lies at {peak:.0f} HU and the lowest value is {low:g}: the intercept was not "
            f"applied. Soft tissue lies at 0 to 80 HU. Subtract {INTERCEPT_HU:.0f}, or convert the series "
            f"again.",
        )
    if tissue < LITTLE and _share(sample, -1200, -300) < 1 - LITTLE:
        return (
            "warning",
            f"{100 * tissue:.2g} % of the voxels lie within -200..200 HU, where soft tissue is; values run "
            f"from {low:g} to {high:g}. {_REMEDY}",
        )
    if low >= -20:
        return (
            "warning",
            f"the lowest value is {low:g}: no air and no fat, which every CT holds. {_REMEDY}",
        )
    return None


def _sample(volume: Volume) -> np.ndarray[Any, Any]:
    """Return some voxels of everywhere, without the filling of the corners."""
    flat = volume.array.reshape(-1)
    stride = max(1, flat.size // SAMPLE) | 1  # odd: does not keep to a few columns
    taken = flat[::stride]
    lowest = taken.min()
    inside = taken[taken > lowest]
    is_filling = lowest < -1500 and len(inside) and inside.min() > lowest + 100
    return inside if is_filling else taken


def _share(sample: np.ndarray[Any, Any], low: float, high: float) -> float:
    return float(np.mean((sample >= low) & (sample <= high)))


def _peak(sample: np.ndarray[Any, Any], low: float, high: float) -> float:
    """Return the commonest value in a range, to 10 HU."""
    counts, edges = np.histogram(sample, bins=int((high - low) // 10), range=(low, high))
    at = int(counts.argmax())
    return float((edges[at] + edges[at + 1]) / 2)
