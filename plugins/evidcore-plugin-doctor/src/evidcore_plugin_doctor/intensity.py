"""Whether the values of a CT are Hounsfield units: air at -1000, soft tissue around 0 to 80.

Scanners fill the corners outside the circle with values of their own (-2000, -2048, -3024), so the lowest
value proves nothing; where tissue and air lie does. Nothing in a body attenuates less than air, so the values
of a CT that shows air begin at -1000 HU with many voxels: where they begin elsewhere, they were scaled or
shifted. Tissue has noise: slices, regions and volumes that hold a single value were overwritten.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from evidcore.data import Volume
from evidcore_plugin_doctor.fault import Remark, error, warning

SAMPLE = 400_000  # voxels looked at
INTERCEPT_HU = 1024.0  # nearly every scanner's; some write 1000
SHARE = 0.10  # of the voxels that soft tissue has at least, wherever it lies
LITTLE = 0.02
AIR_HU = (-1200.0, -960.0)  # where air begins, with its noise, rounding and an intercept of 1000 or 1024
NO_LUNG_HU = -300.0  # what begins above shows no air
PILE_HU = 60.0  # from where values begin: air is a peak, and nothing lies below it
NEGATED_HU = -150.0  # bone, of a negated scan
MR_LOWEST_HU, MR_WIDTH_HU = -50.0, 300.0  # no fat, yet wider than soft tissue with contrast
IMPOSSIBLE_HU = (-10_000.0, 100_000.0)  # fillings and metal stay within
ZERO_SHARE = 0.3  # of a CT; a scan of a whole body has 2 % of water at exactly 0 HU
REGION = 0.02  # of a slice; noise and texture leave no larger region of a CT at one value
EMPTY_HU = -900.0  # empty slices of a CT may be filled with air at its ends
FAT_TWICE_HU = (-1200.0, -1090.0)  # fat under the intercept applied twice; noise of air seldom reaches it

_REMEDY = 'Write the values as HU once, or set intensity = "arbitrary" on the data set.'


def impossible(volume: Volume) -> Remark | None:
    """Say that single voxels hold what no CT holds, None where they do not."""
    low, high = IMPOSSIBLE_HU
    array = volume.array
    if float(array.min()) >= low and float(array.max()) <= high:
        return None
    outside = (array < low) | (array > high)
    z, y, x = (int(index) for index in np.argwhere(outside)[0])
    why = f"{int(outside.sum())} of {array.size} voxels lie beyond {low:g} to {high:g} HU"
    first = f"the first at z={z}, y={y}, x={x}: {float(array[z, y, x]):g}"
    return error(f"{why}, {first}. Convert the series again, or fill them with air (-1000 HU).")


def not_hounsfield(volume: Volume) -> Remark | None:
    """Say why the values are no Hounsfield units, None where they may be."""
    flat = volume.array.reshape(-1)
    taken = flat[:: max(1, flat.size // SAMPLE) | 1]  # odd: does not keep to a few columns
    lowest = taken.min()
    inside = taken[taken > lowest]
    is_filling = lowest < -1500 and len(inside) and inside.min() > lowest + 100  # of the corners
    sample = inside if is_filling else taken
    low, high = float(sample.min()), float(sample.max())
    if low == high:
        return None  # said elsewhere
    if low >= -1.5 and high <= 1.5:
        return error(f"values run from {low:g} to {high:g}: scaled to a unit range, not HU. {_REMEDY}")
    if low >= 0 and high <= 255:
        return error(f"values run from {low:g} to {high:g}: a windowed picture, not HU. {_REMEDY}")
    tissue = _share(sample, -200, 200)
    if (
        tissue < LITTLE
        and _share(sample, -200 - INTERCEPT_HU, 200 - INTERCEPT_HU) > SHARE
        and max(_share(sample, -np.inf, -1500), _share(sample, *FAT_TWICE_HU)) > LITTLE
    ):
        peak = _peak(sample, -200 - INTERCEPT_HU, 200 - INTERCEPT_HU)
        why = f"soft tissue lies at {peak:.0f} HU and the lowest value is {low:g}: the intercept was applied"
        remedy = f"Add {INTERCEPT_HU:.0f}, or convert the series again."
        return error(f"{why} twice. Soft tissue lies at 0 to 80 HU. {remedy}")
    lowest = float(np.quantile(sample, 0.001))
    high_share, peak = _share(sample, 850, 1250), _peak(sample, 850, 1250)
    if lowest < NEGATED_HU and high_share > SHARE / 2 and _share(sample, -np.inf, -700) < LITTLE:
        why = f"air seems to lie at {peak:.0f} HU and bone below {lowest:.0f} HU: the values are negated"
        return error(f"{why}. Air lies at -1000 HU. Multiply by -1, or convert the series again.")
    if lowest > -100 and high_share > SHARE:
        why = f"soft tissue lies at {peak:.0f} HU and the lowest value is {low:g}: the intercept was not"
        remedy = f"Subtract {INTERCEPT_HU:.0f}, or convert the series again."
        return error(f"{why} applied. Soft tissue lies at 0 to 80 HU. {remedy}")
    if tissue < LITTLE and _share(sample, -1200, -300) < 1 - LITTLE:
        why = f"{100 * tissue:.2g} % of the voxels lie within -200..200 HU, where soft tissue is"
        return warning(f"{why}; values run from {low:g} to {high:g}. {_REMEDY}")
    if low >= -20:
        return warning(f"the lowest value is {low:g}: no air and no fat, which every CT holds. {_REMEDY}")
    is_high = AIR_HU[1] < lowest < NO_LUNG_HU and _share(sample, lowest, lowest + PILE_HU) > SHARE / 2
    if is_high or _share(sample, -np.inf, AIR_HU[0]) > LITTLE:
        why = f"the values begin at {lowest:.0f} HU, with many voxels: air lies at -1000 HU"
        return error(f"{why}, and nothing in a body below. They were scaled, shifted or clipped. {_REMEDY}")
    width = float(np.quantile(sample, 0.99)) - lowest
    if lowest >= MR_LOWEST_HU and width >= MR_WIDTH_HU:
        why = f"99 % of the voxels lie in {lowest:.0f} to {lowest + width:.0f} HU: no air and no fat, which"
        return warning(f"{why} every CT holds, and more than soft tissue spans. It may be MR. {_REMEDY}")
    return None


def _share(sample: np.ndarray[Any, Any], low: float, high: float) -> float:
    return float(np.mean((sample >= low) & (sample <= high)))


def _peak(sample: np.ndarray[Any, Any], low: float, high: float) -> float:
    """Return the commonest value in a range, to 10 HU."""
    counts, edges = np.histogram(sample, bins=int((high - low) // 10), range=(low, high))
    at = int(counts.argmax())
    return float((edges[at] + edges[at + 1]) / 2)


def empty_parts(volume: Volume) -> Iterator[Remark]:
    """Yield what of a volume holds a single value.

    At the ends of a scan, slices of air (CT) or of one value (others) are passed over: they come from
    resampling onto a larger grid.
    """
    array = volume.array
    flat = np.array([plane.min() == plane.max() for plane in array])
    if flat.all() and np.ptp(array[:, 0, 0]) == 0:
        yield error(f"every voxel is {array.flat[0]:.10g}: the volume is empty. Convert it again.")
        return
    filled = np.flatnonzero(~flat)
    first, last = (int(filled[0]), int(filled[-1])) if len(filled) else (len(array), -1)
    within = [z for z in np.flatnonzero(flat) if first < z < last]
    ends = [z for z in np.flatnonzero(flat) if not first < z < last]
    if volume.intensity == "hu":
        within += [z for z in ends if array[z, 0, 0] > EMPTY_HU]
    if within:
        values = [f"{value:.10g}" for value in np.unique(array[within, 0, 0])]
        why = f"{len(within)} of {len(array)} slices hold a single value each ({', '.join(values[:3])})"
        where = f"z = {runs(sorted(int(z) for z in within))}"
        yield error(f"{why}: {where}. Convert the series again, or leave the case out.")


def even_regions(volume: Volume) -> Iterator[Remark]:
    """Yield regions of a CT that hold one value, as no tissue does.

    Air and fillings may be even, and so may what lies at either end of the values, where these were clipped.
    """
    array = volume.array
    low, high = max(EMPTY_HU, float(array.min())), float(array.max())
    inner = array[:, 1:, 1:]
    even = (inner == array[:, :-1, 1:]) & (inner == array[:, 1:, :-1])
    even &= (inner > low) & (inner < high)
    largest = REGION * array[0].size
    result: dict[str, list[int]] = {}
    for z in np.flatnonzero(even.sum(axis=(1, 2)) > largest):
        values, counts = np.unique(inner[z][even[z]], return_counts=True)
        alone = np.ptp(array[z]) == 0  # said elsewhere
        if not alone and counts.max() > largest:
            result.setdefault(f"{values[counts.argmax()]:.10g}", []).append(int(z))
    for value, slices in result.items():
        why = f"{len(slices)} of {len(array)} slices hold regions of exactly {value} HU: z = {runs(slices)}"
        remedy = "Convert the series again, or leave the case out."
        yield error(f"{why}. Tissue has noise: the voxels were overwritten. {remedy}")


def cut_away(volume: Volume) -> Iterator[Remark]:
    """Yield that the background of a CT was filled with zeros."""
    zeros = float(np.mean(volume.array == 0))
    if zeros > ZERO_SHARE:
        why = f"{100 * zeros:.0f} % of the voxels are exactly 0 HU, which is water"
        yield warning(f"{why}: the background was cut away. Fill it with air (-1000 HU).")


def runs(numbers: list[int], most: int = 4) -> str:
    """Write sorted numbers as `3-7, 9`."""
    grouped = itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
    runs = [[number for _, number in group] for _, group in grouped]
    texts = [f"{run[0]}" if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs[:most]]
    return ", ".join(texts) + (", ..." if len(runs) > most else "")
