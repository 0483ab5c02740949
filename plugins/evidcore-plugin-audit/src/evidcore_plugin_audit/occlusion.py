"""Conditions of edited scans: what is asked is occluded, replaced or moved, or another place is occluded.

They need masks of what is asked alone, annotated or predicted, so they work where no data set can make a
twin. What is covered is filled with what is around it: the nearest voxel outside, smoothed, with the noise of
the shell. What is replaced is filled with voxels of another place in the scan where tissue is alike, moved in
intensity to what is around it and blended over 5 mm: vessels and the noise's own texture come with them. What
is moved is replaced, and blended in at another place in the same way. An edit may be seen as one
(benchmarks/edit_traces.py), and has the outline of what it hides; the same cover over another place, where
nothing asked lies, tells what that alone costs or gives away.
"""

import dataclasses
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from evidcore.api import Cache, Dataset, MaskRef, Prompt, VolumeRef, read_mask
from evidcore.audit.conditions import Alter, Altering
from evidcore.cache import key_of
from evidcore.data import Array, Mask, Volume, body, changed_copy, content_hash, file_hash
from evidcore.data.content import volume_key
from evidcore.evaluate.reference_lines import answer_place

SHELL_MM = 8.0  # around what is covered, whose noise the cover has
SMOOTH_MM = 4.0
BLEND_MM = 5.0  # around what is replaced: a seam is easily told
TRIES = 64  # places that a cover may be moved to
QUANTILES = (0.02, 0.5, 0.98)  # of intensities, that make tissue alike
MAD_TO_SD = 1.4826  # of normal noise
SIDES = {"left": "right", "right": "left"}
Way = Literal["covered", "covered elsewhere", "replaced", "moved", "moved beside"]
Places = np.ndarray[Any, Any]  # of voxels, (voxel, axis)


class Edit(Altering):
    """Shows questions over edited volumes, and names those who predicted the masks."""

    way: ClassVar[Way]

    def altering(self, prompts: Sequence[Prompt], seed: int, dataset: Dataset | None) -> Alter:
        """Return what shows a question about what the case has a mask of over an edited volume."""
        names = {mask.by for prompt in prompts for mask in asked_masks(prompt, prompt.case.regions)} - {""}
        says = type(self).says
        self.says = f"{says} (masks by {' and '.join(sorted(names))})" if names else says
        return lambda prompt: _edited(prompt, self.way)


class Occluded(Edit):
    """Show the same patient with what is asked covered by what is around it, where the case has its mask.

    Covered are the masks that the reference names, else that of the asked finding, else that of the right
    option, spelt with spaces or underscores; where the case has no true one, what a segmenter predicted.
    """

    says = "the same patients with what is asked covered"
    role = "removed"
    way = "covered"


class Replaced(Edit):
    """Show the same patient with like tissue of another place of the scan where what is asked lies.

    A second way to remove what `occluded` covers: what was seen by its place alone is lost in both, what a
    policy reads in the edit itself in one. Masks are found as there.
    """

    says = "the same patients with like tissue in place of what is asked"
    role = "removed"
    way = "replaced"


class OccludedElsewhere(Edit):
    """Show the same patient with the shape of what is asked covered in another place: the answer must stay.

    The place is the mirrored one across the body's midline; where that touches what is asked or leaves the
    scan, the shape is moved to where tissue is most like that around what is asked.
    """

    says = "the same patients with as much of another place covered"
    role = "kept"
    way = "covered elsewhere"


class Moved(Edit):
    """Show the same patient with what is asked moved to its mirror place, where the right answer is a place.

    That is where the reference names masks, or where another option differs from the right one by its side
    alone. What was right is wrong there: who sees that something is there and guesses where keeps the score.
    """

    says = "the same patients with what is asked in its mirror place"
    role = "removed"
    way = "moved"


class MovedBeside(Edit):
    """Show the same patient with what is asked moved beside itself: is its place seen as finely as that?

    Questions whose reference names masks are shown so. The place touches the old one in the same slices; of
    eight it is the one whose tissue is most like that around what is asked.
    """

    says = "the same patients with what is asked beside its place"
    role = "removed"
    way = "moved beside"


def _edited(prompt: Prompt, way: Way) -> Prompt | None:
    """Return the question over the case's first volume, on whose grid masks lie, edited."""
    if way.startswith("moved") and not _asks_where(prompt, across=way == "moved"):
        return None
    own, masks = prompt.case.volumes[0], asked_masks(prompt, prompt.case.regions)
    volume = _edited_volume(own, masks, way) if masks else None
    if volume is None:
        return None
    shown = prompt.crops()
    crops = [dataclasses.replace(crop, volume=volume) if crop.volume == own else crop for crop in shown]
    return prompt.showing(crops)


def asked_masks(prompt: Prompt, masks: Mapping[str, MaskRef]) -> list[MaskRef]:
    """Return those of a case's masks that show what is asked; none where it has none of it."""
    reference = prompt.reference
    if reference.get("masks"):
        return [masks[name] for name in reference["masks"] if name in masks]
    spoken = {name.replace("_", " ").lower(): name for name in masks}
    right = reference["options"][answer_place(prompt)] if reference.get("options") else None
    for name in (reference.get("finding"), right):
        if (held := spoken.get(str(name).replace("_", " ").lower())) is not None:
            return [masks[held]]
    return []


def _asks_where(prompt: Prompt, across: bool) -> bool:
    """Tell whether the right answer is a place: masks, or across the midline an option with a side."""
    if not (options := prompt.reference.get("options")):
        return bool(prompt.reference.get("masks")) and not prompt.reference.get("present")
    words = [re.findall(r"\w+", str(option).lower()) for option in options]
    right = words[answer_place(prompt)]
    mirrored = [SIDES.get(word, word) for word in right]
    return across and mirrored != right and mirrored in words


class _NothingToEdit(Exception):
    """There is nothing to remove, or no other place."""


def _edited_volume(ref: VolumeRef, masks: Sequence[MaskRef], way: Way) -> VolumeRef | None:
    """Return a volume without what its masks show, in the cache; None where there is nothing, or no place."""
    named = [[content_hash(mask.path), mask.key, mask.label, mask.axes] for mask in masks]
    code = [file_hash(__file__), file_hash(body.__file__)]  # changed code never meets volumes of the old one
    key = key_of([code, volume_key(ref), named, way])

    def change_of(volume: Volume) -> Callable[[Volume], Array]:
        rng = np.random.default_rng(int(key, 16))
        region = np.logical_or.reduce([read_mask(mask, like=volume) for mask in masks])
        if not region.any() or region.all():
            raise _NothingToEdit
        places, wide = None, region if way.startswith("covered") else beside(volume, region) <= BLEND_MM
        if way != "covered":
            places = None if wide.all() else elsewhere(volume, wide, rng, way)
            if places is not None and way.startswith("moved"):
                return _moved(volume, region, wide, places, rng)
            if places is None:
                raise _NothingToEdit
            if way == "covered elsewhere":
                region, places = _filled(places, region.shape), None
        seed = int(rng.integers(1 << 32))  # of the noise of each colour: what is grey stays grey
        return lambda some: without(some, region, places, np.random.default_rng(seed))

    try:
        return changed_copy(ref, Cache("occluded"), key, change_of)
    except _NothingToEdit:
        return None


def _moved(
    volume: Volume, region: Mask, wide: Mask, to: Places, rng: np.random.Generator
) -> Callable[[Volume], Array]:
    """Return what replaces a region, and blends it in where the wider one's voxels go."""
    taken = beside(volume, wide | _filled(to, wide.shape), SHELL_MM) <= SHELL_MM
    instead = elsewhere(volume, wide, rng, "replaced", taken)
    if instead is None:
        raise _NothingToEdit
    there = _filled(to[region[wide]], wide.shape)
    from_where = np.argwhere(wide)[np.lexsort(to.T[::-1])]  # in the order of what they arrive at

    def change(some: Volume) -> Array:
        left = dataclasses.replace(some, array=without(some, region, instead, rng))
        return without(left, there, from_where, rng, source=some)

    return change


def without(
    volume: Volume,
    region: Mask,
    places: Places | None,
    rng: np.random.Generator,
    source: Volume | None = None,
) -> Array:
    """Return the voxels with a region covered, or replaced by other places, in the same type.

    Args:
        volume: a scan.
        region: what is removed, (z, y, x); neither empty nor everything.
        places: (voxel, axis) of those that replace what lies within BLEND_MM of it, in the order of
            `np.argwhere`; None: a cover.
        rng: draws a cover's noise.
        source: has what lies at the places; the scan itself if left out.
    """
    edited, source = volume.array.copy(), source or volume
    if places is None:
        around, noise = _around(volume, region)
        values = around + rng.normal(0, noise, len(around))
    else:
        away = beside(volume, region)
        region = away <= BLEND_MM
        around, _ = _around(volume, region)
        other, theirs = _filled(places, region.shape), np.zeros(region.shape, dtype=np.float32)
        theirs[other], _ = _around(source, other)
        taken = tuple(places.T)
        share = 1 - away[region] / BLEND_MM
        values = share * (source.array[taken] + around - theirs[taken]) + (1 - share) * edited[region]
    values = np.clip(values, source.array.min(), source.array.max())
    edited[region] = np.rint(values) if edited.dtype.kind in "iu" else values
    return edited


def beside(volume: Volume, region: Mask, margin_mm: float = BLEND_MM) -> Array:
    """Return the distance of each voxel from a region in mm; infinite beyond a margin and a voxel."""
    box, away = _near(volume, region, margin_mm)
    result = np.full(region.shape, np.inf, dtype=np.float32)
    result[box] = away
    return result


def _near(volume: Volume, region: Mask, margin_mm: float) -> tuple[tuple[slice, ...], Array]:
    """Return a box around a region, and how far each of its voxels is from the region in mm."""
    from scipy import ndimage

    spacing = volume.spacing_mm_zyx
    (tight,) = ndimage.find_objects(region.astype(np.uint8))
    margins = [max(2, int(margin_mm / step) + 1) for step in spacing]
    sides = zip(tight, margins, strict=True)
    box = tuple(slice(max(0, part.start - margin), part.stop + margin) for part, margin in sides)
    return box, ndimage.distance_transform_edt(~region[box], sampling=spacing)


def _around(volume: Volume, region: Mask) -> tuple[Array, float]:
    """Return what is around a region, smoothed, at each of its voxels, and the noise of the shell."""
    from scipy import ndimage

    spacing, (box, away) = volume.spacing_mm_zyx, _near(volume, region, SHELL_MM)
    held, inside = volume.array[box].astype(np.float32), region[box]
    if inside.all():  # a shell has no room
        return np.full(int(region.sum()), np.median(volume.array[~region]), dtype=np.float32), 0.0
    nearest = ndimage.distance_transform_edt(inside, spacing, return_distances=False, return_indices=True)
    sigma = [SMOOTH_MM / step for step in spacing]
    around = held[tuple(nearest)]
    smooth = ndimage.gaussian_filter(around, sigma)
    shell = ~inside & (away <= max(SHELL_MM, *spacing))
    off = (around - smooth)[shell]
    return smooth[inside], MAD_TO_SD * float(np.median(np.abs(off - np.median(off))))


def elsewhere(
    volume: Volume, region: Mask, rng: np.random.Generator, way: Way, taken: Mask | None = None
) -> Places | None:
    """Return the region's shape in another place, (voxel, axis) in its order; None where it fits nowhere.

    That is where tissue is most like that around the region and nothing is `taken`; first across the midline
    where a place is covered, there alone where something is moved, and beside it where it is moved beside.
    """
    from scipy import ndimage

    near = ndimage.binary_dilation(region)
    used = near if taken is None else near | taken
    at = np.argwhere(region)
    middle_mm = body.midline_mm(volume) if volume.intensity == "hu" else None
    step, count = volume.spacing_mm_zyx[2], volume.shape_zyx[2]
    middle = (count - 1) / 2 if middle_mm is None else middle_mm / step
    mirrored = at.copy()
    mirrored[:, 2] = round(2 * middle) - at[:, 2]
    if way in ("covered elsewhere", "moved"):
        if _is_free(mirrored, used):
            return mirrored
        if way == "moved":
            return None
    like = np.quantile(volume.array[near & ~region], QUANTILES)
    extent = at.max(axis=0) - at.min(axis=0)
    if way == "moved beside":
        starts = [np.array((0, *sides)) * (extent + 2) for sides in itertools.product((-1, 0, 1), repeat=2)]
    else:
        starts = [rng.integers(0, region.shape - extent) - at.min(axis=0) for _ in range(TRIES)]
    # one at a time: a region may have millions of voxels
    off = [
        np.abs(np.quantile(volume.array[tuple((at + start).T)], QUANTILES) - like).sum()
        if _is_free(at + start, used)
        else np.inf
        for start in starts
    ]
    best = int(np.argmin(off))
    return at + starts[best] if np.isfinite(off[best]) else None


def _is_free(places: Places, taken: Mask) -> bool:
    """Tell whether voxels lie in the scan and none of them is taken."""
    is_inside = places.min() >= 0 and (places.max(axis=0) < taken.shape).all()
    return bool(is_inside and not taken[tuple(places.T)].any())


def _filled(places: Places, shape: Sequence[int]) -> Mask:
    result = np.zeros(shape, dtype=np.bool_)
    result[tuple(places.T)] = True
    return result
