"""How far a propagated mask holds: figures of one mask beside the truth, slice by slice.

A mask can be right on the prompted slice and drift away from it. So Dice and the distance between outlines
are told by the distance from the prompt, and a mask is looked at by itself too: whether neighbouring slices
agree, whether its area leaps, whether it falls into parts, whether it leaves the body.
"""

import math
from collections.abc import Sequence

import numpy as np
import scipy  # loads its parts when they are first asked for

from evidcore.data import Mask, Volume
from evidcore.data.body import coarse, outline
from evidcore.data.masks import dice

# slices from the prompt, both ends included, by what tables call them, near to far
DISTANCES = {"0": (0, 0), "1": (1, 1), "2": (2, 2), "3-5": (3, 5), "6-10": (6, 10), "11+": (11, math.inf)}
LEAP = 0.5  # of the larger area of two neighbouring slices
OUTSIDE = 0.01  # of a mask's voxels beyond the body, from which on it leaves the body
SPECK = 0.01  # of a mask's voxels: smaller parts are passed over


Values = dict[str, float | None]  # by metric, `dice/3-5` for one by distance; None where it cannot be told


def drift(found: Mask, truth: Mask, key: int, spacing_mm_yx: Sequence[float]) -> Values:
    """Compare a mask with the truth: Dice and IoU, and over the slices at a distance, their means.

    `dice/…` is over the slices that show either, `surface_mm/…` over those that show both. Masks are
    (z, y, x), the truth is not empty; `key` is the prompted slice.
    """
    dices: dict[str, list[float]] = {name: [] for name in DISTANCES}
    surfaces: dict[str, list[float]] = {name: [] for name in DISTANCES}
    shown = np.flatnonzero((found | truth).any(axis=(1, 2)))
    for z in shown.tolist():
        name = next(name for name, (first, last) in DISTANCES.items() if first <= abs(z - key) <= last)
        dices[name].append(dice(found[z], truth[z]))
        if found[z].any() and truth[z].any():
            surfaces[name].append(surface_mm(found[z], truth[z], spacing_mm_yx))
    both = float((found & truth).sum())
    means = {
        f"{metric}/{name}": float(np.mean(values)) if values else None
        for metric, by_distance in (("dice", dices), ("surface_mm", surfaces))
        for name, values in by_distance.items()
    }
    return {"dice": dice(found, truth), "iou": both / float((found | truth).sum()), **means}


def shape_of(
    mask: Mask, objects: Sequence[Mask], body: Mask | None, meant: Sequence[int] | None = None
) -> Values:
    """Look at a mask by itself; what happens is 1.0, what does not is 0.0.

    - `slice_to_slice_dice`: mean over neighbouring slices that both show it.
    - `area_leaps`: some neighbour's area is less than half as large.
    - `leaves_body`: more than a hundredth of it lies outside; None without HU.
    - `splits`: some prompt gave more parts in 3D than it shows: `meant`, or one, as a box.

    Masks are (z, y, x); `objects` are what each prompt gave, together the mask.
    """
    areas = mask.sum(axis=(1, 2))
    pairs = [(z, z + 1) for z in range(len(mask) - 1) if areas[z] and areas[z + 1]]
    leaps = [abs(int(areas[a]) - int(areas[b])) > LEAP * max(areas[a], areas[b]) for a, b in pairs]
    outside = None if body is None or not mask.any() else float((mask & ~body).sum() / mask.sum())
    counted = zip(objects, meant or [1] * len(objects), strict=True)
    return {
        "slice_to_slice_dice": float(np.mean([dice(mask[a], mask[b]) for a, b in pairs])) if pairs else None,
        "area_leaps": float(any(leaps)) if pairs else None,
        "leaves_body": None if outside is None else float(outside > OUTSIDE),
        "splits": float(any(_parts(item) > count for item, count in counted)),
    }


def surface_mm(first: Mask, second: Mask, spacing_mm_yx: Sequence[float]) -> float:
    """Return the mean distance between the outlines of two regions of a slice, both ways, in mm."""
    from monai.metrics.utils import get_mask_edges, get_surface_distance

    item, other = get_mask_edges(first, second)  # a region that reaches the grid's edge ends there
    spacing = list(spacing_mm_yx)  # in a slice: slices 5 mm apart would decide a distance in 3D
    ways = [get_surface_distance(*pair, spacing=spacing) for pair in ((item, other), (other, item))]
    return float(np.concatenate(ways).mean())


def body_of(volume: Volume) -> Mask | None:
    """Return where the body lies on the volume's grid, with all it encloses on a slice; None without HU."""
    if volume.intensity != "hu":
        return None
    blocks = coarse(volume)
    body = outline(blocks)
    if not body.any():
        return None
    filled = np.stack([scipy.ndimage.binary_fill_holes(plane) for plane in body])
    grown = scipy.ndimage.binary_dilation(filled)  # the outline is known to about one block
    for axis, (count, step_mm) in enumerate(zip(volume.shape_zyx, blocks.spacing_mm_zyx, strict=True)):
        voxels = round(step_mm / volume.spacing_mm_zyx[axis])  # in a block
        places = np.minimum(np.arange(count) // voxels, grown.shape[axis] - 1)
        grown = np.take(grown, places, axis=axis)
    return np.asarray(grown)


def _parts(mask: Mask) -> int:
    labels, count = scipy.ndimage.label(mask, structure=np.ones((3, 3, 3)))
    sizes = np.bincount(labels.reshape(-1), minlength=count + 1)[1:]
    return int((sizes > SPECK * mask.sum()).sum())
