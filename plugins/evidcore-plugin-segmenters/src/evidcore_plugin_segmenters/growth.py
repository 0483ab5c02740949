"""Connected regions of one slice: in a box, around a point, beside a known one.

Where intervals of intensities are tried, all of them are labelled in one call, as a stack of regions.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy  # loads its parts when they are first asked for

from evidcore.api import Box
from evidcore.data.masks import dice
from evidcore_plugin_segmenters.regions import tight_box

Plane = np.ndarray[Any, np.dtype[np.float32]]  # (y, x)
Region = np.ndarray[Any, np.dtype[np.bool_]]  # (y, x)
Regions = np.ndarray[Any, np.dtype[np.bool_]]  # (interval, y, x)

TIME_STEP = 0.125  # of the diffusion: the largest at which ITK takes it for stable in 2D
EDGE = 3.0  # a difference between neighbours of so many standard deviations of the noise is an edge
MARGIN = 0.25  # of a box's side that is looked at beyond it, to see a region spill
LEAST_MARGIN = 3  # voxels
CORE = 0.5  # of a box's sides, the middle of which is taken for the object
CORE_QUANTILES = (0.5, 0.25, 0.75)  # of the core's intensities: where an interval is centred
WIDTHS = 14  # intervals tried per centre, each wider than the one before by the same factor
PLATEAU = 0.02  # scores that differ by a smaller share are equal
MAD_TO_SIGMA = 1.4826  # of normally distributed values
LARGEST = 0.25  # of a slice that what a point stands for may fill
CROSS = np.array([[0, 1, 0], [1, 1, 1], [0, 1, 0]], dtype=np.bool_)  # parts that meet at a corner are two
STACKED = np.stack([np.zeros_like(CROSS), CROSS, np.zeros_like(CROSS)])  # the regions of a stack are apart


@dataclasses.dataclass(frozen=True, kw_only=True)
class Growth:
    """How a region may change from slice to slice; see `RegionGrowing`."""

    drift_mm: float
    reach: float
    least_overlap: float


@dataclasses.dataclass(frozen=True)
class Model:
    """The intensities of an object, both ends included."""

    low: float
    high: float

    def holds(self, plane: Plane) -> Region:
        """Tell which voxels have such an intensity."""
        return (plane >= self.low) & (plane <= self.high)


def smooth(plane: np.ndarray[Any, Any], steps: int) -> Plane:
    """Return a slice after diffusion that evens out noise and halts at differences well above it.

    Source:
        Perona & Malik 1990, Scale-space and edge detection using anisotropic diffusion, IEEE PAMI 12.
    """
    import SimpleITK as sitk  # 0.3 s, and every recipe names a segmenter by default

    values = plane.astype(np.float32)
    noise = _spread(np.diff(values, axis=1)) / np.sqrt(2)
    if not steps or noise == 0:
        return values
    slopes = sum(np.square(slope).mean() for slope in np.gradient(values))
    diffusion = sitk.GradientAnisotropicDiffusionImageFilter()  # curvature flow wears away small lesions
    diffusion.SetNumberOfThreads(1)  # a slice is small: threads cost more than they take off
    diffusion.SetTimeStep(TIME_STEP)
    diffusion.SetConductanceParameter(float(EDGE * noise / np.sqrt(2 * slopes)))  # times ITK's mean slope
    diffusion.SetConductanceScalingUpdateInterval(steps + 1)
    diffusion.SetNumberOfIterations(steps)
    return np.asarray(sitk.GetArrayFromImage(diffusion.Execute(sitk.GetImageFromArray(values))))


def connected(region: Region, seeds: Region) -> Region:
    """Return the parts of a region that hold any seed; parts that meet at a corner alone are two."""
    return np.asarray(_connected(region[None], seeds)[0])


def in_box(plane: Plane, box: Box) -> tuple[Region, Model]:
    """Return the region that fills a box best, cut off at the box, and its intensities.

    Every interval around the usual intensities of the box's middle is tried. A region scores the share of
    the box's rows times the share of its columns that it reaches, times the share of itself that lies inside.
    """
    roi, inner = _surroundings(plane, box)
    local = plane[roi]
    core = _core(inner, local.shape)
    best: tuple[float, Model] = (0.0, Model(0.0, 0.0))
    for centre in dict.fromkeys(float(value) for value in np.quantile(local[core], CORE_QUANTILES)):
        widths = _widths(local, local[core])  # one fixed width finds the organ from almost any box
        away = np.abs(local - centre)
        seeds = core & (away <= widths[0])
        if not seeds.any():
            seeds = core & (away == away[core].min())
        tried = [Model(centre - width, centre + width) for width in widths]
        regions = _connected(np.stack([model.holds(local) for model in tried]), seeds)
        inside = regions[:, *inner]
        rows, columns = inside.any(axis=2).mean(axis=1), inside.any(axis=1).mean(axis=1)
        share = inside.sum((1, 2)) / np.maximum(regions.sum((1, 2)), 1)
        scores = [float(score) for score in rows * columns * share]
        chosen = _middle_of_plateau(scores)
        if scores[chosen] > best[0] * (1 + PLATEAU):
            best = (scores[chosen], tried[chosen])
            result = regions[chosen]
    cut_off = np.zeros_like(result)
    cut_off[inner] = result[inner]
    region = np.zeros(plane.shape, dtype=np.bool_)
    labels, _ = scipy.ndimage.label(_filled(cut_off))
    sizes = np.bincount(labels.reshape(-1))
    sizes[0] = 0
    region[roi] = labels == sizes.argmax()
    return region, best[1]


def around_point(plane: Plane, y: int, x: int) -> tuple[Region, Model]:
    """Return the region around a voxel that changes least as its interval of intensities widens.

    Source:
        Matas et al. 2002, Robust wide baseline stereo from maximally stable extremal regions, BMVC.
    """
    near = plane[max(0, y - 1) : y + 2, max(0, x - 1) : x + 2]
    centre = float(np.median(near))
    seeds = np.zeros(plane.shape, dtype=np.bool_)
    seeds[y, x] = True
    reach = abs(float(plane[y, x]) - centre)  # the voxel itself must lie in every interval
    tried = [Model(centre - reach - width, centre + reach + width) for width in _widths(plane, near)]
    regions = _connected(np.stack([model.holds(plane) for model in tried]), seeds)
    areas = regions.sum((1, 2), dtype=np.float64)
    fitting = max(1, int((areas <= LARGEST * plane.size).sum()))
    change = np.log(areas[2:fitting] / areas[: max(0, fitting - 2)])  # from the one before to the one after
    chosen = int(change.argmin()) + 1 if len(change) else fitting - 1
    return _filled(regions[chosen]), tried[chosen]


def of_mask(plane: Plane, mask: Region) -> tuple[Region, Model]:
    """Return a known region, and the interval of intensities whose connected region is most like it."""
    roi, _ = _surroundings(plane, tight_box(mask, 0))
    local, known = plane[roi], mask[roi]
    values = local[known]
    centre = float(np.median(values))
    tried = [Model(centre - width, centre + width) for width in _widths(local, values)]
    result = _connected(np.stack([model.holds(local) for model in tried]), known)
    scores = [dice(item, known) for item in result]
    return mask.copy(), tried[_middle_of_plateau(scores)]


def leash(z: int, region: Region, reach: float) -> Box:
    """Return the box of a region, wider on each side by `reach` of its own height and width."""
    box, (height, width) = tight_box(region, z), region.shape
    dy, dx = round(reach * (box.y1 - box.y0)), round(reach * (box.x1 - box.x0))
    y0, y1 = max(0, box.y0 - dy), min(height, box.y1 + dy)
    return Box(z=z, y0=y0, y1=y1, x0=max(0, box.x0 - dx), x1=min(width, box.x1 + dx))


def grow(
    plane: Plane, before: Region, model: Model, within: Box, spacing_mm_yx: Sequence[float], growth: Growth
) -> Region | None:
    """Return the region of a slice beside the one whose region is known; None where the object has ended.

    It lies `within` a box, whose slice does not matter.
    """
    steps = [max(1, round(growth.drift_mm / step)) for step in spacing_mm_yx]
    held = tight_box(before, 0)
    y0, y1 = max(within.y0, held.y0 - steps[0]), min(within.y1, held.y1 + steps[0])
    x0, x1 = max(within.x0, held.x0 - steps[1]), min(within.x1, held.x1 + steps[1])
    roi = (slice(y0, y1), slice(x0, x1))
    local, known = plane[roi], before[roi]
    distance = scipy.ndimage.distance_transform_edt(~known, sampling=spacing_mm_yx)
    allowed = distance <= max(growth.drift_mm, *spacing_mm_yx)
    similar = model.holds(local) & allowed
    least = growth.least_overlap * before.sum()
    if not (similar & known).any() or (similar & known).sum() < least:
        return None
    middle = scipy.ndimage.binary_erosion(known) & similar
    seeds = middle if middle.any() else known & similar
    result = connected(similar, seeds)
    opened = scipy.ndimage.binary_opening(np.pad(result, 1, mode="edge"))[1:-1, 1:-1]  # the frame is no edge
    if 2 * opened.sum() > result.sum():  # a thin region is not opened: nothing would be left
        result = connected(opened, known)
    if result.sum() < max(1.0, least):
        return None
    region = np.zeros(before.shape, dtype=np.bool_)
    region[roi] = _filled(result)
    return region


def _surroundings(plane: Plane, box: Box) -> tuple[tuple[slice, slice], tuple[slice, slice]]:
    """Return the part of the slice that is looked at, and the box in that part."""
    spans = []
    for start, stop, size in ((box.y0, box.y1, plane.shape[0]), (box.x0, box.x1, plane.shape[1])):
        margin = max(LEAST_MARGIN, round(MARGIN * (stop - start)))
        first, last = max(0, start - margin), min(size, stop + margin)
        spans.append((slice(first, last), slice(start - first, stop - first)))
    return (spans[0][0], spans[1][0]), (spans[0][1], spans[1][1])


def _core(inner: tuple[slice, slice], shape: tuple[int, ...]) -> Region:
    """Return the ellipse in the middle of a box, at least its middle voxel."""
    y, x = np.ogrid[: shape[0], : shape[1]]
    middles = [(side.start + side.stop - 1) / 2 for side in inner]
    halves = [max(0.75, CORE * (side.stop - side.start) / 2) for side in inner]
    core: Region = ((y - middles[0]) / halves[0]) ** 2 + ((x - middles[1]) / halves[1]) ** 2 <= 1.0
    held = np.zeros(shape, dtype=np.bool_)
    held[inner] = core[inner]
    return held


def _widths(local: Plane, values: np.ndarray[Any, Any]) -> list[float]:
    """Return half widths of intervals, from the noise of `values` up to all that `local` spans."""
    span = float(local.max() - local.min())
    first = max(_spread(values), span / 200, 1e-6)
    last = max(span, 2 * first)
    return [float(width) for width in np.geomspace(first, last, WIDTHS)]


def _spread(values: np.ndarray[Any, Any]) -> float:
    return MAD_TO_SIGMA * float(np.median(np.abs(values - np.median(values))))


def _connected(regions: Regions, seeds: Region) -> Regions:
    """Return of each region the parts that hold any seed."""
    labels, count = scipy.ndimage.label(regions, STACKED)
    held = np.zeros(count + 1, dtype=np.bool_)
    held[labels[:, seeds]] = True
    held[0] = False  # what is no region
    return np.asarray(held[labels])


def _middle_of_plateau(scores: Sequence[float]) -> int:
    """Return the middle of the intervals that score as well as the best, beside it."""
    best = int(np.argmax(scores))
    first = last = best
    while first > 0 and scores[first - 1] >= scores[best] * (1 - PLATEAU):
        first -= 1
    while last + 1 < len(scores) and scores[last + 1] >= scores[best] * (1 - PLATEAU):
        last += 1
    return (first + last) // 2


def _filled(region: Region) -> Region:
    return np.asarray(scipy.ndimage.binary_fill_holes(region))
