"""What is wrong with the masks of one case.

A mask lies on its object where its outline follows edges of the scan, and that of no mirror image does. An
object whose outline does not show (a tumour in muscle, on CT) says nothing.
"""

import gzip
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from evidcore_plugin_tables.mask_facts import read_masks
from scipy import ndimage

from evidcore.api import Case, DataError, MaskRef, VolumeRef
from evidcore.case import Side
from evidcore.data import Array, Mask, Volume, read_geometry
from evidcore.data.masks import left_out
from evidcore_plugin_doctor.coarse import STEP_MM
from evidcore_plugin_doctor.fault import Fault, Remark, error, warning
from evidcore_plugin_doctor.organs import CLEAR_MM, Place, contradictions, organ
from evidcore_plugin_doctor.rims import interpolated
from evidcore_plugin_doctor.statements import plain_name

OUTSIDE = 0.5  # of a mask's voxels; a mask drawn a little too large is passed over
FULL = 0.98  # of a volume; no object fills it
AIR_HU = -940.0  # a lung that the field of view cuts open is not filled, and is denser
SLICES = 12  # looked at
MARGIN = 8  # pixels around the mask
FEWEST = 50  # pixels of outline, and within
SIGMA = 1.0  # pixels
CLIP_HU = (-200.0, 300.0)
WHOLE = 0.8  # of the files of labels hold no label without a name, where all are meant to have one
FEWEST_FILES = 4
MOST_LABELS = 20  # in a message
MOST_HEAD = 1 << 20  # bytes in which a file lists its labels
_LISTED = re.compile(r'<Label Key="(\d{1,9})"[^>]{0,200}>(?:<!\[CDATA\[)?([^<\]]{1,100})')
UNFIT = 1.5  # median slope along the outline to that within: misplaced masks stay at 0.8 to 1.5
FIT = 1.8  # masks in place, of objects whose outline shows, have 1.9 to 9
TIMES = 1.3  # as much as the mask's own


def look_at_masks(
    masks: Mapping[str, MaskRef],
    volume: Volume,
    tissue: Mask | None,
    present: frozenset[str],
    add: Callable[[str, str, Remark], None],
    sides: Mapping[str, tuple[str, Side]],
    spine_mm: float | None,
) -> tuple[dict[str, int], dict[str, str], dict[str, list[int]]]:
    """Read the masks of a volume, each file once or twice however many labels it holds.

    Args:
        masks: by name.
        volume: whose grid they lie on.
        tissue: of a CT, on the coarse grid (z, y, x); None for others.
        present: findings that the case is said to show; a mask of that name should not be empty.
        add: is told of the kind of each fault, of the file that has it, and of what is wrong.
        sides: what says of a mask that it lies on which side.
        spine_mm: where the spine lies, in mm from the patient's right; None where it was not found.

    Returns:
        The voxels of each mask that could be read, by axis what the masks say against it, and the labels that
        each file of labels holds.
    """
    refused: dict[tuple[str, str], list[str]] = {}  # file and reason -> mask names
    voxels: dict[str, int] = {}
    places: dict[str, Place] = {}
    exchanged = {path: _exchanged(path, volume) for path in {ref.path for ref in masks.values()}}
    extents_mm: dict[str, tuple[float, float]] = {}  # of nearly all of a mask, from the patient's right
    stored: dict[str, Array] = {}
    for name, ref, mask in read_masks(masks, volume, stored):
        if isinstance(mask, DataError) or exchanged[ref.path]:
            text = str(mask) if isinstance(mask, DataError) else exchanged[ref.path]
            refused.setdefault((ref.path, text.removeprefix(f"{ref.path}: ")), []).append(name)
            continue
        inside = np.nonzero(mask)
        voxels[name] = len(inside[0])
        if not voxels[name]:
            why = "the case is said to show it" if name in present else "the file holds nothing else"
            if name in present or (ref.label is None and ref.key is None):
                text = f"{name!r}: the mask is empty, and {why}. Draw it, or take it out of the table."
                add("mask/empty", ref.path, warning(text))
            continue
        ends = [np.take(mask, end, axis) for axis in range(3) if mask.shape[axis] > 1 for end in (0, -1)]
        if voxels[name] > FULL * mask.size:
            text = f"the mask holds {100 * voxels[name] / mask.size:.0f} % of the volume"
            remedy = "Draw it, or take it out of the table."
            add("mask", ref.path, error(f"{name!r}: {text}, and so marks nothing in it. {remedy}"))
            continue
        if all(end.all() for end in ends):
            text = "every voxel of the volume's sides is in the mask: it marks all but the object"
            add("mask", ref.path, error(f"{name!r}: {text}. Exchange 0 and 1."))
            continue
        if between := max(left_out(mask, axis) for axis in range(3)):
            text = f"{name!r}: it was drawn on one of {between + 1} slices, and goes on in those between them"
            remedy = "Interpolate it to every slice, or name the scan that it was drawn on."
            add("mask/gaps", ref.path, error(f"{text}. {remedy}"))
        if better := better_turn(volume, mask):
            text = f"{name!r}: {better}. Look at it over the scan; write it again with the scan's affine."
            add("mask/place", ref.path, error(text))
        low, high = np.percentile(inside[2], (5, 95)) * volume.spacing_mm_zyx[2]
        extents_mm[name] = (float(low), float(high))
        z, y, x = np.mean(inside, axis=1) * volume.spacing_mm_zyx
        places[name] = (z, y, x)
        beyond = 0.0 if tissue is None else _share_beyond(inside, volume, tissue)
        if beyond > OUTSIDE and np.median(volume.array[inside]) < AIR_HU:
            text = f"{name!r}: {100 * beyond:.0f} % of its {voxels[name]} voxels lie outside the body."
            text += " Look whether it belongs to this scan and is not flipped."
            add("mask/place", ref.path, error(text))
    labels: dict[str, list[int]] = {}
    for path, array in stored.items():
        values = np.rint(array).astype(np.int32) if array.dtype.kind == "f" else array
        labels[path] = sorted({int(label) for plane in values for label in np.unique(plane)} - {0})
        if odd := interpolated(values):
            named = [repr(name) for name, ref in masks.items() if ref.path == path][:MOST_LABELS]
            text = f"{odd}, as if the map was resampled linearly. Resample it anew, by nearest neighbours."
            add("mask/rims", path, warning(f"{', '.join(named)}: {text}"))
    listed = {path: _label_numbers(path) for path in labels}
    for name, ref in masks.items():
        number = listed.get(ref.path, {}).get(plain_name(name), ref.label)
        if ref.label not in (None, number):
            text = f"{name!r}: is label {ref.label} by the table, label {number} by the file's own list"
            add("mask/labels", ref.path, error(f"{text}. Correct the number, or the file."))
    for (file, reason), names in refused.items():
        add("mask", file, error(f"{', '.join(map(repr, names))}: {reason}"))
    backwards: dict[str, str] = {}
    voxel_ml = float(np.prod(volume.spacing_mm_zyx)) / 1000
    for axis, text in contradictions(places, {name: voxels[name] * voxel_ml for name in places}):
        if axis is not None:
            backwards[axis] = text
        else:
            files = " ".join(sorted({masks[name].path for name in places}))
            add("mask", files, error(f"{text}. Look at the masks; correct them or their names."))
            sides = {name: source for name, source in sides.items() if organ(name) is None}
    spines_mm = [places[name][2] for name in places if organ(name) == "spine"]
    spines_mm = spines_mm or ([] if spine_mm is None else [spine_mm])
    for name, (source, side) in sides.items() if spines_mm else ():
        middle_mm = float(np.mean(spines_mm))
        low_mm, high_mm = extents_mm.get(name, (middle_mm, middle_mm))
        gap_mm = middle_mm - high_mm if side == "left" else low_mm - middle_mm
        if gap_mm > CLEAR_MM / 2:
            lies = f"it lies at least {gap_mm:.0f} mm to the other side of the spine"
            text = f"{name!r}: {source} says {side}, and {lies}. Look at the scan; correct mask or name."
            add("mask/place", masks[name].path, error(text))
    return voxels, backwards, labels


def misnumbered(files: Sequence[tuple[Case, str, list[int]]], empty: Collection[str]) -> Iterator[Fault]:
    """Yield the files whose labels are others than those that masks are named by.

    Args:
        files: a case, a file of its masks, and the labels other than 0 that it holds.
        empty: masks that are empty in all cases, told elsewhere.
    """
    stray, usual = [], 0
    for case, path, values in files:
        masks = [(ref.label, name) for name, ref in case.masks.items() if ref.path == path]
        named = {label: name for label, name in masks if label is not None}
        names = ", ".join(f"{label} ({name!r})" for label, name in named.items())
        labels = ", ".join(map(str, values[:MOST_LABELS]))
        text = f"its masks are named by the labels {names}, the file holds {labels}"
        is_other = not named.keys() & {*values} and 0 < len(values) <= len(named)  # a crop shows fewer
        if is_other and not {*named.values()} & {*empty}:
            text = f"{text}: none of them. Correct the numbers in the table, or the file."
            yield Fault(check="mask", part="labels", severity="error", case=case.id, file=path, text=text)
        usual += not {*values} - named.keys()
        stray += [(case, path, text)] if {*values} - named.keys() and not is_other else []
    if usual >= max(FEWEST_FILES, WHOLE * (usual + len(stray))):  # elsewhere a part is named on purpose
        for case, path, text in stray:
            text = f"{text}; in {usual} other files every label has a name. Name it, or erase it."
            yield Fault(check="mask", part="stray", severity="warning", case=case.id, file=path, text=text)


def _label_numbers(path: str) -> dict[str, int]:
    """Return the labels that a NIfTI file lists by name, as Connectome Workbench and TotalSegmentator do."""
    if not path.lower().endswith((".nii", ".nii.gz")):
        return {}
    with gzip.open(path) if path.lower().endswith(".gz") else open(path, "rb") as file:
        head = file.read(MOST_HEAD)
    listed = _LISTED.findall(head.decode("latin-1"))
    return {plain_name(name): int(number) for number, name in listed}


def _exchanged(path: str, volume: Volume) -> str:
    """Say that a mask's file has the volume's axes in another order; "" where not, or without grid."""
    try:
        shape = read_geometry(VolumeRef(path=path, intensity="arbitrary")).shape_zyx
    except DataError:
        return ""  # said by the reader, or the file holds objects and no grid
    whole = volume.file_geometry.shape_zyx
    if shape == whole or sorted(shape) != sorted(whole):
        return ""
    why = f"the mask has {shape} voxels (z, y, x), its volume {whole}: axes stand in each other's place"
    return f"{why}. Write it again as the volume was written."


def _share_beyond(inside: tuple[np.ndarray[Any, Any], ...], volume: Volume, tissue: Mask) -> float:
    """Return which share of a mask's voxels lies outside all tissue."""
    cubes = np.transpose(inside) * (np.array(volume.spacing_mm_zyx) / STEP_MM)
    cubes = np.minimum(cubes.astype(np.intp), np.array(tissue.shape) - 1)
    return 1.0 - float(tissue[tuple(cubes.T)].mean())


def better_turn(volume: Volume, mask: Mask) -> str | None:
    """Return how a mask (z, y, x), not empty, must be turned to lie on an object; None where it lies well."""
    own = _fit(volume, mask)
    if own is None or own >= UNFIT:
        return None
    turned = {f"with {name} mirrored": np.flip(mask, axis) for axis, name in enumerate("zyx")}
    if mask.shape[1] == mask.shape[2]:
        turned["with x and y exchanged"] = mask.transpose(0, 2, 1)
    fit, how = max((_fit(volume, other) or 0.0, how) for how, other in turned.items())
    if fit < max(FIT, TIMES * own):
        return None
    why = f"its outline follows no edge of the scan ({own:.2f} times the slope within)"
    return f"{why}, and {how} it does ({fit:.2f} times)"


def _fit(volume: Volume, mask: Mask) -> float | None:
    """Return how much steeper values change along a mask's outline than within it; None if it is small."""
    slices, rows, columns = (np.flatnonzero(mask.any(axis=axes)) for axes in ((1, 2), (0, 2), (0, 1)))
    taken = np.unique(slices[np.linspace(0, len(slices) - 1, SLICES).astype(int)])
    within = tuple(slice(max(0, int(at[0]) - MARGIN), int(at[-1]) + MARGIN + 1) for at in (rows, columns))
    pieces, values = mask[taken][:, *within], volume.array[taken][:, *within].astype(np.float32)
    if volume.intensity == "hu":
        values = np.clip(values, *CLIP_HU)
    sigma = (0, SIGMA, SIGMA)
    slope = np.hypot(*(ndimage.gaussian_filter(values, sigma, axis) for axis in ((0, 1, 0), (0, 0, 1))))
    cross = ndimage.generate_binary_structure(2, 1)[None]
    core = ndimage.binary_erosion(pieces, cross, border_value=1)
    edge = ndimage.binary_dilation(pieces, cross) & ~core
    if min(core.sum(), edge.sum()) < FEWEST:
        return None
    inner = float(np.median(slope[core]))  # medians: the skin that a misplaced outline crosses does not count
    return float(np.median(slope[edge])) / inner if inner > 0 else None
