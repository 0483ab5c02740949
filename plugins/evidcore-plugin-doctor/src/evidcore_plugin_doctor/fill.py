"""Slices, regions and volumes that hold a single value where a body should be."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from evidcore.data import Volume
from evidcore_plugin_doctor.fault import Remark

ZERO_SHARE = 0.3  # of a CT; a scan of a whole body has 2 % of water at exactly 0 HU
REGION = 0.02  # of a slice; noise and texture leave no larger region of a CT at one value
AIR_HU = -900.0  # empty slices of a CT may be filled with air at its ends


def empty_parts(volume: Volume) -> Iterator[Remark]:
    """Yield what of a volume holds a single value.

    At the ends of a scan, slices of air (CT) or of one value (others) are passed over: they come from
    resampling onto a larger grid.
    """
    array = volume.array
    flat = np.array([plane.min() == plane.max() for plane in array])
    if flat.all() and np.ptp(array[:, 0, 0]) == 0:
        yield "error", f"every voxel is {_value(array[0])}: the volume is empty. Convert it again."
        return
    filled = np.flatnonzero(~flat)
    first, last = (int(filled[0]), int(filled[-1])) if len(filled) else (len(array), -1)
    within = [z for z in np.flatnonzero(flat) if first < z < last]
    ends = [z for z in np.flatnonzero(flat) if not first < z < last]
    if volume.intensity == "hu":
        within += [z for z in ends if array[z, 0, 0] > AIR_HU]
    if within:
        values = sorted({_value(array[z]) for z in within})
        yield (
            "error",
            f"{len(within)} of {len(array)} slices hold a single value each "
            f"({', '.join(map(str, values[:3]))}): z = {runs(sorted(int(z) for z in within))}. "
            f"Convert the series again, or leave the case out.",
        )


def even_regions(volume: Volume) -> Iterator[Remark]:
    """Yield regions of a CT that hold one value, as no tissue does.

    Air and fillings may be even, and so may what lies at either end of the values, where these were clipped.
    """
    array = volume.array
    low, high = max(AIR_HU, float(array.min())), float(array.max())
    even = array[:, 1:, 1:] == array[:, :-1, 1:]
    even &= array[:, 1:, 1:] == array[:, 1:, :-1]
    inner = array[:, 1:, 1:]
    even &= (inner > low) & (inner < high)
    largest = REGION * array[0].size
    result: dict[float | int, list[int]] = {}
    for z in np.flatnonzero(even.sum(axis=(1, 2)) > largest):
        values, counts = np.unique(inner[z][even[z]], return_counts=True)
        commonest = values[counts.argmax()]
        alone = np.ptp(array[z]) == 0  # said elsewhere
        if not alone and counts.max() > largest:
            result.setdefault(_value(commonest), []).append(int(z))
    for value, slices in result.items():
        yield (
            "error",
            f"{len(slices)} of {len(array)} slices hold regions of exactly {value} HU: z = {runs(slices)}. "
            "Tissue has noise: the voxels were overwritten. Convert the series again, or leave the case "
            "out.",
        )


def cut_away(volume: Volume) -> Iterator[Remark]:
    """Yield that the background of a CT was filled with zeros."""
    zeros = float(np.mean(volume.array == 0))
    if zeros > ZERO_SHARE:
        yield (
            "warning",
            f"{100 * zeros:.0f} % of the voxels are exactly 0 HU, which is water: the background was cut "
            f"away. Fill it with air (-1000 HU).",
        )


def runs(numbers: list[int], most: int = 4) -> str:
    """Write sorted numbers as `3-7, 9`."""
    grouped = itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
    runs = [[number for _, number in group] for _, group in grouped]
    texts = [f"{run[0]}" if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs[:most]]
    return ", ".join(texts) + (", ..." if len(runs) > most else "")


def _value(values: Any) -> float | int:
    value = np.asarray(values).reshape(-1)[0].item()
    return int(value) if float(value).is_integer() else float(value)
