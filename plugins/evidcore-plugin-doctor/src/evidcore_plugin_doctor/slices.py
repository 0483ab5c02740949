"""Whether the slices of a scan follow each other: their order, repeats, gaps, and one scale of values.

A body changes little by little along a scan: two slices that stand next to each other are no less like than
two with one between. That is compared on pixels of 5 mm, where noise has gone.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy.spatial.distance import pdist, squareform

from evidcore.data import Volume
from evidcore_plugin_doctor.coarse import Grid, block_means, merged_pixels
from evidcore_plugin_doctor.fault import Remark, error, warning
from evidcore_plugin_doctor.intensity import runs

FEWEST = 6  # slices that hold more than one value
FEWEST_PIXELS = 100  # of 5 mm; noise makes slices of fewer alike by chance
CLIP_HU = (-1000.0, 600.0)  # streaks of metal differ from slice to slice
CLIP_PERCENTILES = (0.5, 99.5)
ODD = 1.2  # distance to both neighbours, to that between these; 1 where noise alone tells slices apart
NEAR = 2  # slices
LIKER = 0.85  # distance to a slice farther off, to that of the most alike near one
INTERLEAVED = 0.5  # of the slices have their like farther off; phantoms of noisy slices reach 0.3
GAP = 2.0  # the widest step between neighbours, to the next one
SHIFT_HU = 30.0  # of the median pixel; fat and water are 100 apart, and few pixels change tissue at once
JUMP_HU = 500.0  # slices in the wrong place, or with a hole, differ by less
SPREAD = 1.3  # standard deviation of a slice to that of its neighbour
SAME_PATTERN = 0.95  # correlation of a slice with its neighbour scaled; where a body ends it is lower
NEGATIVE = -0.5  # correlation below which bright is dark in the next slice; that of noise lies around 0
ALTERNATING = 2.5  # what every second slice has of its own, to chance; noise alone reaches 1.6
SLICE_AXIS = 1.3  # spacing across slices to that within, where these are not the axial ones


def disordered(volume: Volume) -> Iterator[tuple[str, Remark]]:
    """Yield how the slices of a volume do not follow each other: kind of fault, and what is wrong."""
    # across the slices: the axis whose spacing differs from that of both others, else z
    spacing = np.array(volume.spacing_mm_zyx)
    widest = int(spacing.argmax())
    others = np.delete(spacing, widest)
    is_clear = spacing[widest] > SLICE_AXIS * others.max() and others.max() <= SLICE_AXIS * others.min()
    axis = widest if is_clear else 0
    array = np.moveaxis(volume.array, axis, 0)
    pixels = np.minimum(np.delete(merged_pixels(volume.spacing_mm_zyx), axis), array.shape[1:]).tolist()
    kept = [index for index, plane in enumerate(array) if plane.min() != plane.max()]
    if len(kept) < FEWEST:
        return
    same = [b for a, b in itertools.pairwise(kept) if b == a + 1 and np.array_equal(array[a], array[b])]
    if same:
        why = f"{len(same)} of {len(array)} slices hold the voxels of the slice before"
        remedy = "Slices were repeated or filled in. Convert the series again."
        yield "slices", warning(f"{why}: {'zyx'[axis]} = {runs(same)}. {remedy}")
    planes = np.stack([block_means(array[index], pixels) for index in kept])
    if planes[0].size < FEWEST_PIXELS:
        return
    low, high = CLIP_HU if volume.intensity == "hu" else np.percentile(planes, CLIP_PERCENTILES)
    flat = np.clip(planes, low, high).reshape(len(planes), -1)
    distance = squareform(pdist(flat)) / np.sqrt(flat.shape[1])  # root mean square, (slice, slice)
    order: list[Remark] = []
    if volume.intensity == "hu":  # MR fades at its ends, is filled there, and has slices measured in turn
        order = list(_alternating(flat, axis))
        yield from _steps(planes, kept, axis)
        yield from (("slices/gap", remark) for remark in _gap(distance, kept, axis))
    yield from (("slices/order", remark) for remark in order or _misplaced(distance, kept, axis))


def _misplaced(distance: np.ndarray[Any, Any], kept: list[int], axis: int) -> Iterator[Remark]:
    """Yield the slices that are unlike both neighbours, or like others more than these."""
    count = len(kept)
    index = np.arange(count)
    beside = distance[index[:-1], index[1:]]
    ratio = (beside[:-1] + beside[1:]) / np.maximum(2 * distance[index[:-2], index[2:]], 1e-6)
    is_wide = beside[:-1] + beside[1:] > 2 * np.median(beside)  # where little changes, little makes a ratio
    odd = [kept[at + 1] for at in np.flatnonzero((ratio > ODD) & is_wide)]
    apart = np.abs(index[:, None] - index[None])
    near = np.where((apart > 0) & (apart <= NEAR), distance, np.inf).min(axis=1)
    far = np.where(apart > NEAR, distance, np.inf).min(axis=1)
    elsewhere = float(np.mean(far < LIKER * near))
    name = "zyx"[axis]
    if elsewhere > INTERLEAVED:
        why = f"{100 * elsewhere:.0f} % of the {count} slices are less like their neighbours than like slices"
        remedy = "Sort them by their position and write the scan again."
        yield error(f"{why} farther off: the slices are out of order. {remedy}")
    elif odd:
        why = f"{len(odd)} of {count} slices are unlike both neighbours, though these are alike"
        cause = "They stand in the wrong place, come from another scan, or have other values."
        remedy = "Look at the scan; convert the series again."
        yield error(f"{why}: {name} = {runs(odd)}. {cause} {remedy}")


def _alternating(flat: np.ndarray[Any, Any], axis: int) -> Iterator[Remark]:
    """Yield that every second slice differs from both neighbours in the same way."""
    residual = flat[1:-1] - (flat[:-2] + flat[2:]) / 2
    residual[::2] *= -1
    share = np.sqrt((residual.mean(axis=0) ** 2).mean() / max((residual**2).mean(), 1e-6))
    if share * np.sqrt(len(residual)) > ALTERNATING:
        why = f"every second slice along {'zyx'[axis]} differs in the same way from its neighbours"
        cause = "Two series lie between each other, such as two phases."
        yield error(f"{why} ({100 * share:.0f} % of how slices differ). {cause} Convert each by itself.")


def _steps(planes: Grid, kept: list[int], axis: int) -> Iterator[tuple[str, Remark]]:
    """Yield where Hounsfield units change their scale from one slice to the next."""
    flat = planes.reshape(len(planes), -1).astype(np.float64)
    shift = np.median(np.diff(flat, axis=0), axis=1)
    spread = flat.std(axis=1)
    ratio = spread[1:] / np.maximum(spread[:-1], 1e-6)
    normal = (flat - flat.mean(axis=1, keepdims=True)) / np.maximum(spread[:, None], 1e-6)
    alike = (normal[1:] * normal[:-1]).mean(axis=1)
    is_scaled = (np.maximum(ratio, 1 / ratio.clip(1e-6)) > SPREAD) & (alike > SAME_PATTERN)
    is_step = (np.abs(shift) > SHIFT_HU) | is_scaled | (alike < NEGATIVE)
    at = np.flatnonzero(is_step)
    if len(at):
        is_jump = np.abs(shift[at]).max() > JUMP_HU or alike[at].min() < NEGATIVE
        first, kind = at[0], "jump" if is_jump else "step"
        where = f"{'zyx'[axis]} = {runs([kept[i + 1] for i in at])}"
        by = f"the median pixel by {shift[first]:.0f} HU, the spread {ratio[first]:.2f}-fold"
        why = f"Hounsfield units change from slice to slice at {where}: at the first, {by}"
        cause = "Part of the slices was scaled, shifted or negated."
        remedy = "Apply each slice's own slope and intercept once; convert the series again."
        yield f"slices/{kind}", error(f"{why}, correlation {alike[first]:.2f}. {cause} {remedy}")


def _gap(distance: np.ndarray[Any, Any], kept: list[int], axis: int) -> Iterator[Remark]:
    """Yield a step between neighbours that stands out among all."""
    index = np.arange(len(kept) - 1)
    beside = distance[index, index + 1]
    second, widest = np.sort(beside)[-2:]
    if widest > GAP * max(second, 1e-6):
        at = kept[int(beside.argmax())]
        times = f"{widest / max(second, 1e-6):.1f} times as large as any other between neighbouring slices"
        cause = "slices are missing there, or parts of two scans were joined"
        step = f"the step from {'zyx'[axis]} = {at} to {at + 1}"
        yield warning(f"{step} is {times}: {cause}. Convert the series again.")
