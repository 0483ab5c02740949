"""What is wrong with the masks of one case."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from evidcore.api import DataError, MaskRef, VolumeRef, read, read_mask
from evidcore.data import Volume, read_geometry
from evidcore_plugin_doctor.coarse import STEP_MM
from evidcore_plugin_doctor.fault import Severity
from evidcore_plugin_doctor.organs import Place, contradictions
from evidcore_plugin_doctor.outline import better_turn

OUTSIDE = 0.5  # of a mask's voxels; a mask drawn a little too large is passed over
FULL = 0.98  # of a volume; no object fills it
AIR_HU = -940.0  # a lung that the field of view cuts open is not filled, and is denser

Mask = np.ndarray[Any, np.dtype[np.bool_]]
FileRemark = tuple[Severity, str, str]  # severity, file, text


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seen:
    """What was seen of a case's masks."""

    faults: tuple[FileRemark, ...]
    voxels: Mapping[str, int]  # by mask name; those that could be read
    backwards: Mapping[str, str]  # axis -> what the masks say against it


def look_at_masks(
    masks: Mapping[str, MaskRef], volume: Volume, tissue: Mask | None, present: frozenset[str]
) -> Seen:
    """Read the masks of a volume, each file once or twice however many labels it holds.

    Args:
        masks: by name.
        volume: whose grid they lie on.
        tissue: of a CT, on the coarse grid (z, y, x); None for others.
        present: findings that the case is said to show; a mask of that name should not be empty.
    """
    refused: dict[tuple[str, str], list[str]] = {}  # file and reason -> mask names
    faults: list[FileRemark] = []
    voxels: dict[str, int] = {}
    places: dict[str, Place] = {}
    voxel_ml = float(np.prod(volume.spacing_mm_zyx)) / 1000
    paths = {ref.path for ref in masks.values()}
    turned = {path: text for path in paths if (text := _exchanged(path, volume))}
    for name, ref, mask in read_masks(masks, volume):
        if not isinstance(mask, DataError) and ref.path in turned:
            mask = DataError(turned[ref.path])
        if isinstance(mask, DataError):
            reason = str(mask).removeprefix(f"{ref.path}: ")
            refused.setdefault((ref.path, reason), []).append(name)
            continue
        inside = np.nonzero(mask)
        voxels[name] = len(inside[0])
        if not voxels[name]:
            why = "the case is said to show it" if name in present else "the file holds nothing else"
            if name in present or (ref.label is None and ref.key is None):
                text = f"{name!r}: the mask is empty, and {why}. Draw it, or take it out of the table."
                faults.append(("warning", ref.path, text))
            continue
        if voxels[name] > FULL * mask.size:
            text = (
                f"{name!r}: the mask holds {100 * voxels[name] / mask.size:.0f} % of the volume, and so "
                "marks nothing in it. Draw it, or take it out of the table."
            )
            faults.append(("error", ref.path, text))
            continue
        better = better_turn(volume, mask)
        if better:
            text = f"{name!r}: {better}. Look at it over the scan; write it again with the scan's affine."
            faults.append(("error", ref.path, text))
        steps = zip(inside, volume.spacing_mm_zyx, strict=True)
        z, y, x = (float(axis.mean() * step) for axis, step in steps)
        places[name] = (z, y, x)
        beyond = _share_beyond(inside, volume, tissue)
        if beyond > OUTSIDE and np.median(volume.array[inside]) < AIR_HU:
            text = (
                f"{name!r}: {100 * beyond:.0f} % of its {voxels[name]} voxels lie outside the body. "
                f"Look whether it belongs to this scan and is not flipped."
            )
            faults.append(("error", ref.path, text))
    sizes = {name: count * voxel_ml for name, count in voxels.items() if count}
    for (file, reason), names in refused.items():
        text = f"{', '.join(map(repr, names))}: {reason}"
        faults.append(("error", file, text))
    backwards: dict[str, str] = {}
    for axis, text in contradictions(places, sizes):
        if axis is not None:
            backwards[axis] = text
        else:
            files = " ".join(sorted({masks[name].path for name in places}))
            faults.append(("error", files, f"{text}. Look at the masks; correct them or their names."))
    return Seen(faults=tuple(faults), voxels=voxels, backwards=backwards)


def _exchanged(path: str, volume: Volume) -> str | None:
    """Say that a mask's file has the volume's axes in another order; None where not, or without grid."""
    try:
        shape = read_geometry(VolumeRef(path=path, intensity="arbitrary")).shape_zyx
    except DataError:
        return None  # said by the reader, or the file holds objects and no grid
    whole = volume.file_geometry.shape_zyx
    if shape == whole or sorted(shape) != sorted(whole):
        return None
    return (
        f"{path}: the mask has {shape} voxels (z, y, x), its volume {whole}: axes stand in each other's "
        f"place. Write it again as the volume was written."
    )


def read_masks(
    masks: Mapping[str, MaskRef], volume: Volume
) -> Iterator[tuple[str, MaskRef, Mask | DataError]]:
    """Yield each mask; further labels of one file are picked from a single reading of it."""
    labels = collections.Counter(ref.path for ref in masks.values() if ref.label is not None)
    maps: dict[str, np.ndarray[Any, Any] | None] = {}
    for name, ref in masks.items():
        try:
            held = maps.get(ref.path)
            if held is not None and ref.label is not None:
                yield name, ref, held == ref.label
                continue
            mask = read_mask(ref, volume)
            if labels[ref.path] > 1 and ref.label is not None and ref.path not in maps:
                maps[ref.path] = _label_map(ref, mask)
            yield name, ref, mask
        except DataError as error:
            yield name, ref, error


def _label_map(ref: MaskRef, mask: Mask) -> np.ndarray[Any, Any] | None:
    """Return all labels of a file, None where they do not lie as `read_mask` has put one of them."""
    try:
        values = read(VolumeRef(path=ref.path, intensity="arbitrary")).array
    except DataError:
        return None  # not every file of masks is a volume too
    agrees = values.shape == mask.shape and np.array_equal(values == ref.label, mask)
    return values if agrees else None


def _share_beyond(inside: tuple[np.ndarray[Any, Any], ...], volume: Volume, tissue: Mask | None) -> float:
    """Return which share of a mask's voxels lies outside all tissue, 0 where that is not known."""
    if tissue is None:
        return 0.0
    cubes = tuple(
        np.minimum((axis * (step / STEP_MM)).astype(np.intp), count - 1)
        for axis, step, count in zip(inside, volume.spacing_mm_zyx, tissue.shape, strict=True)
    )
    return 1.0 - float(tissue[cubes].mean())
