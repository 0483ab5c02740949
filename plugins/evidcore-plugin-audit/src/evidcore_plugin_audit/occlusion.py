"""Conditions `occluded`, `replaced` and `occluded-elsewhere`: what is asked is removed, or another place is.

They need masks of what is asked alone, annotated or predicted, so they work where no data set can make a
twin. What is covered is filled with what is around it: the nearest voxel outside, smoothed, with the noise of
the shell. What is replaced is filled with voxels of another place in the scan where tissue is alike, moved in
intensity to what is around it and blended over 5 mm: vessels and the noise's own texture come with them. An
edit may be seen as one (benchmarks/edit_traces.py), and has the outline of what it hides; the same cover over
another place, where nothing asked lies, tells what that alone costs or gives away.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from evidcore.api import Cache, Dataset, MaskRef, Prompt, VolumeRef, read, read_mask
from evidcore.audit.conditions import Alter, Altering
from evidcore.cache import key_of
from evidcore.data import Array, Mask, Volume, body, content_hash, file_hash, read_geometry, save_volume
from evidcore.data.content import volume_key
from evidcore.data.pictures import colours, save_picture
from evidcore.evaluate.reference_lines import answer_place

SHELL_MM = 8.0  # around what is covered, whose noise the cover has
SMOOTH_MM = 4.0
BLEND_MM = 5.0  # around what is replaced: a seam is easily told
TRIES = 64  # places that a cover may be moved to
QUANTILES = (0.02, 0.5, 0.98)  # of intensities, that make tissue alike
MAD_TO_SD = 1.4826  # of normal noise
Way = Literal["covered", "covered elsewhere", "replaced"]
Places = np.ndarray[Any, Any]  # of voxels, (voxel, axis)


class Occluded(Altering):
    """Show the same patient with what is asked covered by what is around it, where the case has its mask.

    Covered are the masks that the reference names, else that of the asked finding, else that of the right
    option, spelt with spaces or underscores; where the case has no true one, what a segmenter predicted.

    Args:
        most: questions shown so, drawn by the seed; each may need a volume of its own.
    """

    says = "the same patients with what is asked covered"
    role = "removed"

    def altering(self, prompts: Sequence[Prompt], seed: int, dataset: Dataset | None) -> Alter:
        """Return what shows a question about what the case has a mask of with that covered."""
        self.says = _naming_segmenters(Occluded.says, prompts)
        return lambda prompt: _edited(prompt, "covered")


class Replaced(Altering):
    """Show the same patient with like tissue of another place of the scan where what is asked lies.

    A second way to remove what `occluded` covers: what was seen by its place alone is lost in both, what a
    policy reads in the edit itself in one. Masks are found as there.

    Args:
        most: questions shown so, drawn by the seed; each may need a volume of its own.
    """

    says = "the same patients with like tissue in place of what is asked"
    role = "removed"

    def altering(self, prompts: Sequence[Prompt], seed: int, dataset: Dataset | None) -> Alter:
        """Return what shows a question about what the case has a mask of with that replaced."""
        self.says = _naming_segmenters(Replaced.says, prompts)
        return lambda prompt: _edited(prompt, "replaced")


class OccludedElsewhere(Altering):
    """Show the same patient with the shape of what is asked covered in another place: the answer must stay.

    The place is the mirrored one across the body's midline; where that touches what is asked or leaves the
    scan, the shape is moved to where tissue is most like that around what is asked.

    Args:
        most: questions shown so, drawn by the seed; each may need a volume of its own.
    """

    says = "the same patients with as much of another place covered"
    role = "kept"

    def altering(self, prompts: Sequence[Prompt], seed: int, dataset: Dataset | None) -> Alter:
        """Return what shows a question about what the case has a mask of with another place covered."""
        self.says = _naming_segmenters(OccludedElsewhere.says, prompts)
        return lambda prompt: _edited(prompt, "covered elsewhere")


def _naming_segmenters(says: str, prompts: Sequence[Prompt]) -> str:
    """Return what a condition shows, with who predicted masks of what is asked."""
    names = {mask.by for prompt in prompts for mask in asked_masks(prompt, prompt.case.regions)} - {""}
    return f"{says} (masks by {' and '.join(sorted(names))})" if names else says


def _edited(prompt: Prompt, way: Way) -> Prompt | None:
    """Return the question over the case's first volume, on whose grid masks lie, edited."""
    masks = asked_masks(prompt, prompt.case.regions)
    if not masks:
        return None
    own = prompt.case.volumes[0]
    volume = _edited_volume(own, masks, way)
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


class _NothingToEdit(Exception):
    """There is nothing to remove, or no other place."""


def _edited_volume(ref: VolumeRef, masks: Sequence[MaskRef], way: Way) -> VolumeRef | None:
    """Return a volume without what its masks show, in the cache; None where there is nothing, or no place."""
    named = [[content_hash(mask.path), mask.key, mask.label, mask.axes] for mask in masks]
    code = [file_hash(__file__), file_hash(body.__file__)]  # changed code never meets volumes of the old one
    key = key_of([code, volume_key(ref), named, way])
    is_picture = read_geometry(ref).shape_zyx[0] == 1  # which NIfTI cannot hold

    def write(path: Path) -> None:
        volume, rng = read(ref), np.random.default_rng(int(key, 16))
        region = np.logical_or.reduce([read_mask(mask, like=volume) for mask in masks])
        if not region.any():
            raise _NothingToEdit
        shape = beside(volume, region) <= BLEND_MM if way == "replaced" else region
        places = None if way == "covered" or shape.all() else elsewhere(volume, shape, rng, way == "replaced")
        if shape.all() or (places is None and way != "covered"):
            raise _NothingToEdit
        if places is not None and way == "covered elsewhere":
            region, places = _filled(places, region.shape), None
        if is_picture:
            save_picture(_edited_picture(ref, volume, region, places, int(key, 16)), path)
        else:
            save_volume(dataclasses.replace(volume, array=without(volume, region, places, rng)), path)

    try:
        path = Cache("occluded").file(key, ".png" if is_picture else ".nii.gz", write)
    except _NothingToEdit:
        return None
    return VolumeRef(path=str(path), intensity=ref.intensity)


def _edited_picture(ref: VolumeRef, volume: Volume, region: Mask, places: Places | None, seed: int) -> Array:
    """Return a picture with a region removed in each of its colours, (y, x) or (y, x, colour)."""
    shown = colours(ref.path)
    planes = volume.array if shown is None else np.moveaxis(shown, -1, 0)
    edited = [  # noise of one seed: what is grey stays grey
        without(dataclasses.replace(volume, array=plane[None]), region, places, np.random.default_rng(seed))[
            0
        ]
        for plane in planes
    ]
    return edited[0] if shown is None else np.stack(edited, axis=-1)


def without(volume: Volume, region: Mask, places: Places | None, rng: np.random.Generator) -> Array:
    """Return the voxels with a region covered, or replaced by other places, in the same type.

    Args:
        volume: a scan.
        region: what is removed, (z, y, x); neither empty nor everything.
        places: (voxel, axis) of those that replace what lies within BLEND_MM of it, in the order of
            `np.argwhere`; None: a cover.
        rng: draws a cover's noise.
    """
    edited = volume.array.copy()
    if places is None:
        around, noise = _around(volume, region)
        values = around + rng.normal(0, noise, len(around))
    else:
        away = beside(volume, region)
        region = away <= BLEND_MM
        around, _ = _around(volume, region)
        other, theirs = _filled(places, region.shape), np.zeros(region.shape, dtype=np.float32)
        theirs[other], _ = _around(volume, other)
        taken = tuple(places.T)
        share = 1 - away[region] / BLEND_MM
        values = share * (edited[taken] + around - theirs[taken]) + (1 - share) * edited[region]
    values = np.clip(values, edited.min(), edited.max())
    edited[region] = np.rint(values) if edited.dtype.kind in "iu" else values
    return edited


def beside(volume: Volume, region: Mask) -> Array:
    """Return the distance of each voxel from a region in mm; infinite beyond BLEND_MM and a voxel."""
    from scipy import ndimage

    (tight,) = ndimage.find_objects(region.astype(np.uint8))
    margins = [int(BLEND_MM / step) + 1 for step in volume.spacing_mm_zyx]
    box = tuple(
        slice(max(0, part.start - margin), part.stop + margin)
        for part, margin in zip(tight, margins, strict=True)
    )
    result = np.full(region.shape, np.inf, dtype=np.float32)
    result[box] = ndimage.distance_transform_edt(~region[box], sampling=volume.spacing_mm_zyx)
    return result


def _around(volume: Volume, region: Mask) -> tuple[Array, float]:
    """Return what is around a region, smoothed, at each of its voxels, and the noise of the shell."""
    from scipy import ndimage

    spacing = volume.spacing_mm_zyx
    (tight,) = ndimage.find_objects(region.astype(np.uint8))
    margins = [max(2, round(SHELL_MM / step)) for step in spacing]
    sides = zip(tight, margins, strict=True)
    box = tuple(slice(max(0, part.start - margin), part.stop + margin) for part, margin in sides)
    held, inside = volume.array[box].astype(np.float32), region[box]
    if inside.all():  # a shell has no room
        return np.full(int(region.sum()), np.median(volume.array[~region]), dtype=np.float32), 0.0
    nearest = ndimage.distance_transform_edt(inside, spacing, return_distances=False, return_indices=True)
    sigma = [SMOOTH_MM / step for step in spacing]
    around = held[tuple(nearest)]
    smooth = ndimage.gaussian_filter(around, sigma)
    shell = ~inside & (ndimage.distance_transform_edt(~inside, sampling=spacing) <= max(SHELL_MM, *spacing))
    off = (around - smooth)[shell]
    return smooth[inside], MAD_TO_SD * float(np.median(np.abs(off - np.median(off))))


def elsewhere(volume: Volume, region: Mask, rng: np.random.Generator, alike: bool) -> Places | None:
    """Return the region's shape in another place, (voxel, axis) in its order; None where it fits nowhere.

    That is where tissue is most like that around the region; unless `alike`, first across the midline.
    """
    from scipy import ndimage

    near = ndimage.binary_dilation(region)
    at = np.argwhere(region)
    middle_mm = body.midline_mm(volume) if volume.intensity == "hu" else None
    step, count = volume.spacing_mm_zyx[2], volume.shape_zyx[2]
    middle = (count - 1) / 2 if middle_mm is None else middle_mm / step
    mirrored = at.copy()
    mirrored[:, 2] = round(2 * middle) - at[:, 2]
    if not alike and _is_free(mirrored, near):
        return mirrored
    like = np.quantile(volume.array[near & ~region], QUANTILES)
    room = np.array(region.shape) - at.max(axis=0) + at.min(axis=0)
    starts = [rng.integers(0, room) - at.min(axis=0) for _ in range(TRIES)]
    # one at a time: a region may have millions of voxels
    off = [
        np.abs(np.quantile(volume.array[tuple((at + start).T)], QUANTILES) - like).sum()
        if _is_free(at + start, near)
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
