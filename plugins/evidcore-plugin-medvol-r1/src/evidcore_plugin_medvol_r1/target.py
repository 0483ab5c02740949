"""Where the object that a question asks for is seen: its area and its boxes, slice by slice.

Boxes are tight. A mask that holds several instances by its nature (lungs, kidneys) gives a box for each of
its largest connected parts (8 neighbours) on a slice; parts that are too small are left out, unless all are:
then one box holds them all. Every other mask gives one box, however many fragments it has.
"""

import dataclasses
import functools
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy  # loads its parts when they are first asked for

from evidcore.api import Box, Cache, Case, DataError, MaskRef, VisualPart, VolumeRef, read, read_mask
from evidcore.case import Part
from evidcore.data import Mask, content_hash

MEASURING = 3  # raise whenever the same masks give other targets
PARTS: Mapping[str, int] = {"lung": 2, "lungs": 2, "kidney": 2, "kidneys": 2}  # MedVol-R1: up to two boxes
SMALLEST_PART = 200 / 512**2  # of a slice's area: MedVol-R1's 200 pixels on its grid of 512 x 512
RANKED_SLICES = 10  # MedVol-R1: the gold slice is the upper median of so many
Named = tuple[tuple[str, MaskRef], ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rule:
    """How many boxes a mask gives on a slice."""

    parts: tuple[tuple[str, int], ...]  # mask name, in any case -> most boxes; one for every other
    smallest_part: float  # share of the slice's area that a part needs for a box of its own


WHOLE = Rule(parts=(), smallest_part=0.0)  # a box for each mask


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """An object on the slices that show it."""

    areas: Mapping[int, int]  # slice -> voxels
    boxes: Mapping[int, tuple[Box, ...]]  # slice -> its boxes


def shown_slices(parts: Sequence[Part]) -> dict[int, VisualPart]:
    """Return the parts that show a single slice, by its index."""
    visual = (part for part in parts if isinstance(part, VisualPart) and part.crop.is_slice)
    return {part.crop.box_zyx[0]: part for part in visual if part.crop.box_zyx is not None}


def require_one_volume(case: Case) -> None:
    """Refuse a case of which slices cannot be named."""
    if len(case.volumes) != 1:
        why = f"has {len(case.volumes)} volumes, and a slice is named by its index alone"
        raise DataError(f"case {case.id!r}: {why}. Ask about cases with one volume.")


def require_masks(case: Case, names: Sequence[str], asked: str) -> None:
    """Refuse what is asked of a case, and answered by a mask that it lacks."""
    if missing := next((name for name in names if name not in case.masks), None):
        listing = ", ".join(sorted(case.masks)) or "none"
        why = f"{asked} is answered by mask {missing!r}, which the case lacks"
        raise DataError(f"case {case.id!r}: {why}. It has: {listing}. Correct the data set.")


def measure(case: Case, names: Sequence[str], cache_folder: Path, rule: Rule = WHOLE) -> Target:
    """Measure the masks that answer a question, together; read once for each state of their files.

    The first volume of the case is the grid. Areas are of all masks OR-ed, boxes of each by itself.

    Raises:
        DataError: if a file cannot be used; names the case.
    """
    named = tuple((name, case.masks[name]) for name in names)
    try:
        return _cached(case.volumes[0], named, rule, cache_folder)
    except DataError as cause:
        raise DataError(f"{cause} (case {case.id!r})") from cause


def gold_slice(areas: Mapping[int, int], shown: Collection[int], ranked: int = RANKED_SLICES) -> int | None:
    """Return the upper median of the `ranked` shown slices on which the target is largest.

    Slices without the target do not count. Of equal areas (in voxels) the lower slice counts first. None
    where no shown slice shows the target.

    Source:
        Wang et al. 2026, MedVol-R1, arXiv:2605.26621; github AdvancingEther/MedVol-R1 @051b20f.
    """
    seen = sorted((z for z in shown if areas.get(z, 0) > 0), key=lambda z: (-areas[z], z))[:ranked]
    return sorted(seen)[len(seen) // 2] if seen else None


def slice_boxes(plane: Mask, z: int, most: int, smallest_px: float) -> tuple[Box, ...]:
    """Return at most so many boxes of slice `z` of a mask, (y, x), from the patient's right to the left.

    A part needs `smallest_px` pixels for a box of its own.
    """
    if not plane.any():
        return ()
    if most > 1:
        labels, _ = scipy.ndimage.label(plane, structure=np.ones((3, 3)))
        sizes = np.bincount(labels.ravel())[1:]
        large = [part for part in np.argsort(-sizes, kind="stable")[:most] if sizes[part] >= smallest_px]
        if large:
            boxes = [_box(labels == part + 1, z) for part in large]
            return tuple(sorted(boxes, key=lambda box: (box.x0, box.y0)))
    return (_box(plane, z),)


def _box(region: np.ndarray[Any, Any], z: int) -> Box:
    [(rows, columns)] = scipy.ndimage.find_objects(region.astype(np.uint8))
    return Box(z=z, y0=rows.start, y1=rows.stop, x0=columns.start, x1=columns.stop)


@functools.lru_cache(maxsize=2048)
def _cached(ref: VolumeRef, named: Named, rule: Rule, cache_folder: Path) -> Target:
    files = {path: content_hash(path) for path in {ref.path, *(mask.path for _, mask in named)}}
    asked = {
        "measuring": MEASURING,
        "volume": [files[ref.path], ref.to_params()],
        "masks": [[name, files[mask.path], mask.key, mask.label, mask.axes] for name, mask in named],
        "rule": dataclasses.asdict(rule),
    }
    cache = Cache("segmentation-targets", cache_folder)
    known = cache.get_or_make(asked, lambda: _measured(ref, named, rule))
    boxes = {int(z): tuple(Box(**box) for box in some) for z, some in known["boxes"].items()}
    return Target(areas={int(z): area for z, area in known["areas"].items()}, boxes=boxes)


def _measured(ref: VolumeRef, named: Named, rule: Rule) -> dict[str, Any]:
    """Return a target as plain JSON."""
    volume = read(ref)
    _, height, width = volume.shape_zyx
    together = np.zeros(volume.shape_zyx, dtype=np.bool_)
    boxes: dict[int, dict[Box, None]] = {}
    most = {name.lower(): count for name, count in rule.parts}
    for name, mask_ref in named:
        mask = read_mask(mask_ref, like=volume)
        together |= mask
        for z in np.flatnonzero(mask.any(axis=(1, 2))).tolist():
            result = slice_boxes(mask[z], z, most.get(name.lower(), 1), rule.smallest_part * height * width)
            boxes.setdefault(z, {}).update(dict.fromkeys(result))
    areas = together.sum(axis=(1, 2))
    plain = {z: [dataclasses.asdict(box) for box in boxes[z]] for z in sorted(boxes)}
    return {"areas": {z: int(areas[z]) for z in plain}, "boxes": plain}
