"""Conditions `occluded` and `occluded-elsewhere`: what is asked is covered, or as much of another place is.

Both need masks of what is asked alone, annotated or predicted, so they work where no data set can make a
twin. What is covered is filled with what is around it: the nearest voxel outside, smoothed, with the noise of
the shell. A cover may be seen as one, and it has the outline of what it hides; the same cover over another
place, where nothing asked lies, tells what that alone costs or gives away.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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
TRIES = 64  # places that a cover may be moved to
MAD_TO_SD = 1.4826  # of normal noise


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
        return lambda prompt: _covered(prompt, elsewhere=False)


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
        return lambda prompt: _covered(prompt, elsewhere=True)


def _naming_segmenters(says: str, prompts: Sequence[Prompt]) -> str:
    """Return what a condition shows, with who predicted masks of what is asked."""
    names = {mask.by for prompt in prompts for mask in asked_masks(prompt, prompt.case.regions)} - {""}
    return f"{says} (masks by {' and '.join(sorted(names))})" if names else says


def _covered(prompt: Prompt, *, elsewhere: bool) -> Prompt | None:
    """Return the question over the case's first volume, on whose grid masks lie, with a cover."""
    masks = asked_masks(prompt, prompt.case.regions)
    if not masks:
        return None
    own = prompt.case.volumes[0]
    volume = _with_cover(own, masks, elsewhere)
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


class _NothingToCover(Exception):
    """There is nothing to cover, or no other place for the cover."""


def _with_cover(ref: VolumeRef, masks: Sequence[MaskRef], elsewhere: bool) -> VolumeRef | None:
    """Return a volume with its masks covered, in the cache; None where there is nothing, or no place."""
    named = [[content_hash(mask.path), mask.key, mask.label, mask.axes] for mask in masks]
    code = [file_hash(__file__), file_hash(body.__file__)]  # changed code never meets volumes of the old one
    key = key_of([code, volume_key(ref), named, elsewhere])
    is_picture = read_geometry(ref).shape_zyx[0] == 1  # which NIfTI cannot hold

    def write(path: Path) -> None:
        volume, rng = read(ref), np.random.default_rng(int(key, 16))
        region = np.logical_or.reduce([read_mask(mask, like=volume) for mask in masks])
        if not region.any() or region.all():
            raise _NothingToCover
        place = _elsewhere(volume, region, rng) if elsewhere else region
        if place is None:
            raise _NothingToCover
        if is_picture:
            save_picture(_covered_picture(ref, volume, place, int(key, 16)), path)
        else:
            save_volume(dataclasses.replace(volume, array=cover(volume, place, rng)), path)

    try:
        path = Cache("occluded").file(key, ".png" if is_picture else ".nii.gz", write)
    except _NothingToCover:
        return None
    return VolumeRef(path=str(path), intensity=ref.intensity)


def _covered_picture(ref: VolumeRef, volume: Volume, place: Mask, seed: int) -> Array:
    """Return a picture with a place covered in each of its colours, (y, x) or (y, x, colour)."""
    shown = colours(ref.path)
    planes = volume.array if shown is None else np.moveaxis(shown, -1, 0)
    covered = [  # noise of one seed: what is grey stays grey
        cover(dataclasses.replace(volume, array=plane[None]), place, np.random.default_rng(seed))[0]
        for plane in planes
    ]
    return covered[0] if shown is None else np.stack(covered, axis=-1)


def cover(volume: Volume, region: Mask, rng: np.random.Generator) -> Array:
    """Return the voxels with a region filled by what is around it, in the same type.

    Args:
        volume: a scan.
        region: what is covered, (z, y, x); neither empty nor everything.
        rng: draws the noise.
    """
    from scipy import ndimage

    spacing = volume.spacing_mm_zyx
    (tight,) = ndimage.find_objects(region.astype(np.uint8))
    margins = [max(2, round(SHELL_MM / step)) for step in spacing]
    sides = zip(tight, margins, strict=True)
    box = tuple(slice(max(0, part.start - margin), part.stop + margin) for part, margin in sides)
    held, inside = volume.array[box].astype(np.float32), region[box]
    if inside.all():  # a shell has no room
        return np.where(region, np.median(volume.array[~region]), volume.array).astype(volume.array.dtype)
    nearest = ndimage.distance_transform_edt(inside, spacing, return_distances=False, return_indices=True)
    sigma = [SMOOTH_MM / step for step in spacing]
    around = held[tuple(nearest)]
    smooth = ndimage.gaussian_filter(around, sigma)
    shell = ~inside & (ndimage.distance_transform_edt(~inside, sampling=spacing) <= max(SHELL_MM, *spacing))
    off = (around - smooth)[shell]
    noise = MAD_TO_SD * float(np.median(np.abs(off - np.median(off))))
    values = smooth[inside] + rng.normal(0, noise, int(inside.sum()))
    values = np.clip(values, held[~inside].min(), held[~inside].max())
    covered = volume.array.copy()
    covered[box][inside] = np.rint(values) if covered.dtype.kind in "iu" else values
    return covered


def _elsewhere(volume: Volume, region: Mask, rng: np.random.Generator) -> Mask | None:
    """Return the region's shape in another place; None where it fits nowhere."""
    from scipy import ndimage

    near = ndimage.binary_dilation(region)
    at = np.argwhere(region)
    middle_mm = body.midline_mm(volume) if volume.intensity == "hu" else None
    step, count = volume.spacing_mm_zyx[2], volume.shape_zyx[2]
    middle = (count - 1) / 2 if middle_mm is None else middle_mm / step
    mirrored = at.copy()
    mirrored[:, 2] = round(2 * middle) - at[:, 2]
    if _is_free(mirrored, near):
        return _filled(mirrored, region.shape)
    like = np.median(volume.array[near & ~region])
    room = np.array(region.shape) - at.max(axis=0) + at.min(axis=0)
    starts = [rng.integers(0, room) - at.min(axis=0) for _ in range(TRIES)]
    # one at a time: a region may have millions of voxels
    off = [
        abs(np.median(volume.array[tuple((at + start).T)]) - like) if _is_free(at + start, near) else np.inf
        for start in starts
    ]
    best = int(np.argmin(off))
    return _filled(at + starts[best], region.shape) if np.isfinite(off[best]) else None


def _is_free(places: np.ndarray[Any, Any], taken: Mask) -> bool:
    """Tell whether voxels lie in the scan and none of them is taken."""
    is_inside = places.min() >= 0 and (places.max(axis=0) < taken.shape).all()
    return bool(is_inside and not taken[tuple(places.T)].any())


def _filled(places: np.ndarray[Any, Any], shape: Sequence[int]) -> Mask:
    result = np.zeros(shape, dtype=np.bool_)
    result[tuple(places.T)] = True
    return result
