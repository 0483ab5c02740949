"""Whether the anatomy of a CT lies where its axes say, told from bone, lungs, heart and liver.

Only what is sure is said: every cue has a wide band between "right" and "wrong" in which it says nothing, and
left and right are called swapped only where three cues agree. Limbs, heads, small crops and whatever touches
the edges of the field of view are passed over.

1. *Axes permuted*: a body runs out of a scan through its upper and lower end. One that runs out through both
   ends of another axis, and through neither of this one, has its axes in another order.
2. *Front and back*: the spine is the bone in the body's middle; it lies behind the middle, in supine and
   prone patients alike (the table does not, and is not used).
3. *Up and down*, where both lungs are seen: beside the lower end of the lungs lies the liver, beside the
   upper end nothing as thick.
4. *Left and right*, where both lungs are seen: liver on one side, heart on the other, and the lung on the
   liver's side about as large as the other one or larger (fluid around a lung pushes the heart away).
"""

import dataclasses

import numpy as np
from scipy import ndimage

from evidcore.data import Mask
from evidcore_plugin_doctor.coarse import STEP_MM, Grid

TISSUE_HU = -300.0
BONE_HU = 200.0
LUNG_HU = (-950.0, -400.0)  # mean of a lung; gas in the bowel is emptier
DENSE_HU = (0.0, 250.0)  # liver, heart, muscle; with contrast
_ML = (STEP_MM / 10) ** 3  # of a cube
_CM2 = (STEP_MM / 10) ** 2  # of a cube's face

TORSO_CM2 = 200.0  # a thigh has less
ALONG_MM = 60.0  # the spine must be seen along this
STRIP_MM = 30.0  # to both sides of the body's middle
DEPTH_MM = (120.0, 450.0)  # of a torso, front to back
FRONT, BACK = 0.40, 0.60  # of the body's depth; a median between them says nothing
AGREEING = 0.85  # of the slices must have it on the median's side of the middle
LUNG_ML = 400.0  # each
LIVER_ML = 60.0  # of its core, 15 mm below its surface
TIMES = 4.0  # as much on one side as on the other
HEART_MM = 8.0  # off the spine
LUNG_RATIO = (0.85, 2.0)  # lung on the liver's side to the other one
_WITHIN_SLICE = ndimage.generate_binary_structure(2, 1)[None]


def find_tissue(coarse: Grid) -> Mask:
    """Return all tissue, (z, y, x) on the coarse grid and filled slice by slice; a table counts too."""
    return np.asarray(ndimage.binary_fill_holes(coarse > TISSUE_HU, _WITHIN_SLICE))


def find_body(coarse: Grid) -> Mask | None:
    """Return the outline of the body, (z, y, x) on the coarse grid and filled slice by slice.

    It is the largest piece of tissue: one leg of two. None where there is none.
    """
    pieces, count = ndimage.label(coarse > TISSUE_HU)
    if not count:
        return None
    largest = np.bincount(pieces[pieces > 0]).argmax()
    return np.asarray(ndimage.binary_fill_holes(pieces == largest, _WITHIN_SLICE))


def misplaced(coarse: Grid, body: Mask) -> dict[str, str]:
    """Say by axis how the anatomy contradicts it; empty where it agrees or nothing is sure."""
    permuted = _permuted(body)
    if permuted:
        return {"z": permuted}
    spine = find_spine(coarse, body)
    if spine is None:
        return {}
    result = {}
    if spine.depth < FRONT:
        where = f"{100 * spine.depth:.0f} % of the way from the front of the body to its back"
        seen = f"seen along {spine.along_mm:.0f} mm"
        result["y"] = f"the spine lies in front, {where}, {seen}: y runs to the front"
    lungs = _lungs(coarse, body, spine.x)
    if lungs is None:
        return result
    # what lies at least 15 mm inside dense tissue: liver, heart, thick muscle
    dense = body & (coarse > DENSE_HU[0]) & (coarse < DENSE_HU[1])
    ball = ndimage.generate_binary_structure(3, 1)
    core = np.asarray(ndimage.binary_erosion(dense, ball, iterations=round(15 / STEP_MM)))
    quarter, beyond = (lungs.high - lungs.low) / 4, 40 / STEP_MM
    heights = np.nonzero(core)[0]
    below = int(((heights >= lungs.low - beyond) & (heights <= lungs.low + quarter)).sum())
    above = int(((heights <= lungs.high + beyond) & (heights >= lungs.high - quarter)).sum())
    upside_down = above >= TIMES * below and above * _ML >= LIVER_ML
    upright = below >= TIMES * above and below * _ML >= LIVER_ML
    if upside_down:
        upper = f"{above * _ML:.0f} ml of dense tissue at their upper end"
        lower = f"{below * _ML:.0f} ml at their lower end"
        result["z"] = f"the liver lies above the lungs, {upper} and {lower}: z runs downwards"
    if upright or upside_down:
        mirrored = _mirrored(coarse, lungs, core, spine, upside_down=upside_down)
        if mirrored:
            result["x"] = mirrored
    return result


def _permuted(body: Mask) -> str | None:
    """Compare through which ends of the field of view the body runs out."""
    cut_cm2 = [sorted(_CM2 * float(np.take(body, end, axis).sum()) for end in (0, -1)) for axis in range(3)]
    if cut_cm2[0][1] > TORSO_CM2 / 10:
        return None
    for axis, name, other in ((1, "y", 2), (2, "x", 1)):
        smaller = cut_cm2[axis][0]
        if smaller >= TORSO_CM2 and smaller > 2 * cut_cm2[other][0]:
            ends = f"both ends of {name} ({smaller:.0f} cm² of it at the smaller one) and at no end of z"
            return f"the body runs out of the scan at {ends}: {name} and z stand in each other's place"
    return None


@dataclasses.dataclass(frozen=True)
class Spine:
    """Where the spine lies, on the coarse grid."""

    depth: float  # 0 at the front of the body as the axes say, 1 at its back
    x: float  # index
    y: float  # index
    along_mm: float


def find_spine(coarse: Grid, body: Mask) -> Spine | None:
    """Find the bone in the middle of a torso whose front and back are both seen."""
    bone = (coarse > BONE_HU) & body
    last = body.shape[1] - 1
    depths, places = [], []
    for inside, bony in zip(body, bone, strict=True):
        if inside.sum() * _CM2 < TORSO_CM2:
            continue
        columns = np.flatnonzero(inside.any(axis=0))
        middle = (columns[0] + columns[-1]) / 2
        strip = slice(max(0, round(middle - STRIP_MM / STEP_MM)), round(middle + STRIP_MM / STEP_MM) + 1)
        rows = np.flatnonzero(inside[:, strip].any(axis=1))
        if not len(rows) or rows[0] == 0 or rows[-1] == last:
            continue  # front or back are cut off
        deep_mm = (rows[-1] - rows[0] + 1) * STEP_MM
        y, x = np.nonzero(bony[:, strip])
        if not DEPTH_MM[0] <= deep_mm <= DEPTH_MM[1] or len(y) * _CM2 < 2.0:
            continue
        depths.append(((np.median(y) + 0.5) - rows[0]) / (rows[-1] - rows[0] + 1))
        places.append((float(np.median(y)), float(np.median(x) + strip.start)))
    along_mm = len(depths) * STEP_MM
    if along_mm < ALONG_MM:
        return None
    known = np.array(depths)
    depth = float(np.median(known))
    if FRONT <= depth <= BACK or np.mean((known < 0.5) == (depth < 0.5)) < AGREEING:
        return None
    y, x = np.median(np.array(places), axis=0)
    return Spine(depth=depth, x=float(x), y=float(y), along_mm=along_mm)


@dataclasses.dataclass(frozen=True, eq=False)
class _Lungs:
    inside: Mask
    low: float  # z index under which 5 % of it lie
    high: float
    right_ml: float  # towards smaller x
    left_ml: float


def _lungs(coarse: Grid, body: Mask, middle_x: float) -> _Lungs | None:
    """Find two lungs."""
    airy = body & (coarse < LUNG_HU[1])
    pieces, count = ndimage.label(airy)
    if not count:
        return None
    numbers = np.arange(1, count + 1)
    sizes = ndimage.sum_labels(airy, pieces, numbers) * _ML
    means = ndimage.mean(coarse, pieces, numbers)
    are_lungs = (sizes >= LUNG_ML) & (means > LUNG_HU[0]) & (means < LUNG_HU[1])
    inside = np.isin(pieces, numbers[are_lungs])
    heights, _, columns = np.nonzero(inside)
    left_ml = float((columns > middle_x).sum() * _ML)
    right_ml = float((columns < middle_x).sum() * _ML)
    if min(left_ml, right_ml) < LUNG_ML:
        return None
    low, high = np.percentile(heights, [5, 95])
    return _Lungs(inside, float(low), float(high), right_ml, left_ml)


def _mirrored(coarse: Grid, lungs: _Lungs, core: Mask, spine: Spine, *, upside_down: bool) -> str | None:
    """Compare the sides of liver, heart and the larger lung."""
    heights, _, columns = np.nonzero(core)
    beyond = heights - lungs.high if upside_down else lungs.low - heights
    beside = (beyond >= 0) & (beyond <= 60 / STEP_MM)
    left = int((columns[beside] > spine.x).sum())
    right = int((columns[beside] < spine.x).sum())
    if left < TIMES * right or left * _ML < LIVER_ML:
        return None
    heart_mm, ratio = _heart_mm(coarse, lungs, spine, upside_down), lungs.left_ml / lungs.right_ml
    if heart_mm is None or heart_mm > -HEART_MM or not LUNG_RATIO[0] <= ratio <= LUNG_RATIO[1]:
        return None
    return (
        f"the liver lies on the left ({left * _ML:.0f} ml of dense tissue there, {right * _ML:.0f} ml on the "
        f"right) and the heart {-heart_mm:.0f} mm to the right of the spine: x runs to the right"
    )


def _heart_mm(coarse: Grid, lungs: _Lungs, spine: Spine, upside_down: bool) -> float | None:
    """Return how far the tissue between the lungs, before the spine, lies to the left of the spine."""
    third = (lungs.high - lungs.low) / 3
    start = lungs.high - 1.5 * third if upside_down else lungs.low + third / 2
    offsets: list[float] = []
    for z in range(round(start), round(start + third) + 1):
        airy = lungs.inside[z]
        dense = (coarse[z] > DENSE_HU[0]) & (coarse[z] < 2 * DENSE_HU[1])
        for y in np.flatnonzero(airy.any(axis=1)):
            if (y >= spine.y - 30 / STEP_MM) == (spine.depth >= 0.5):
                continue  # beside or behind the spine
            columns = np.flatnonzero(airy[y])
            between = [x for x in range(columns[0], columns[-1]) if dense[y, x] and not airy[y, x]]
            offsets += [x - spine.x for x in between]
    if len(offsets) * _ML < LIVER_ML:
        return None
    return float(np.mean(offsets) * STEP_MM)
