"""What can be said about a case from its masks alone: how much there is of each, and where it lies."""

import collections
import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from evidcore.api import Cache, Case, DataError, MaskRef, VolumeRef, read, read_mask
from evidcore.data import Array, Mask, Volume, content_hash
from evidcore.data.body import midline_mm

READING = 2  # raise whenever the same files give other facts


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskFacts:
    """One mask: its volume, and the x of its centroid in mm from the grid's first voxel (towards left)."""

    voxels: int
    volume_ml: float
    x_mm: float | None  # None: the mask is empty


@dataclasses.dataclass(frozen=True, kw_only=True)
class CaseFacts:
    """The masks of a case by name, and the planes that sides are told by, in mm as `MaskFacts.x_mm`."""

    masks: Mapping[str, MaskFacts]
    body_mm: float | None  # the body's midline; None where it cannot be told, or was not asked for
    grid_mm: float  # the grid's middle


def case_facts(case: Case, names: Iterable[str], cache_folder: Path, *, body: bool) -> CaseFacts:
    """Measure a case's masks; read once for each state of the files.

    The case's first volume is the grid. The body's midline, which `body` asks for, needs HU.

    Raises:
        DataError: if a file cannot be used; names the case.
    """
    ref, masks = case.volumes[0], {name: case.masks[name] for name in sorted(names)}
    try:
        files = {path: content_hash(path) for path in {ref.path, *(mask.path for mask in masks.values())}}
        asked = {
            "reading": READING,
            "volume": [files[ref.path], ref.to_params()],
            "masks": {
                name: [files[mask.path], mask.key, mask.label, mask.axes] for name, mask in masks.items()
            },
            "body": body,
        }
        cache = Cache("mask-facts", cache_folder)
        known = cache.get_or_make(asked, lambda: dataclasses.asdict(_measure(ref, masks, body)))
    except DataError as cause:
        raise DataError(f"{cause} (case {case.id!r})") from cause
    measured = {name: MaskFacts(**facts) for name, facts in known["masks"].items()}
    return CaseFacts(masks=measured, body_mm=known["body_mm"], grid_mm=known["grid_mm"])


def _measure(ref: VolumeRef, masks: Mapping[str, MaskRef], body: bool) -> CaseFacts:
    volume = read(ref)
    result: dict[str, MaskFacts] = {}
    for name, _, mask in read_masks(masks, volume):
        if isinstance(mask, DataError):
            raise mask
        result[name] = _from_columns(volume, mask.sum(axis=(0, 1)))
    middle_mm = (volume.shape_zyx[2] - 1) / 2 * volume.spacing_mm_zyx[2]
    return CaseFacts(masks=result, body_mm=midline_mm(volume) if body else None, grid_mm=middle_mm)


def read_masks(
    masks: Mapping[str, MaskRef], volume: Volume, stored: dict[str, Array] | None = None
) -> Iterator[tuple[str, MaskRef, Mask | DataError]]:
    """Yield each mask, or why it cannot be read; further labels of one file come from one reading of it.

    `stored` takes the voxels of each file of labels.
    """
    labels = collections.Counter(ref.path for ref in masks.values() if ref.label is not None)
    maps: dict[str, Array] = {}
    for name, ref in masks.items():
        if ref.label is not None and ref.key is None and ref.path in maps:
            yield name, ref, maps[ref.path] == ref.label
            continue
        try:
            mask = read_mask(ref, volume)
        except DataError as cause:
            yield name, ref, cause
            continue
        yield name, ref, mask
        if ref.label is not None and labels.pop(ref.path, 0) > (stored is None):
            with contextlib.suppress(DataError):  # not every file of masks is a volume too
                whole = read(VolumeRef(path=ref.path, intensity="arbitrary"))
                if stored is not None:
                    stored[ref.path] = whole.array
                # else `read_mask` reconciles them or says what is wrong
                if whole.array.dtype == np.int16 and whole.geometry.fits(volume.geometry):
                    maps[ref.path] = whole.array


def _from_columns(volume: Volume, columns: Array) -> MaskFacts:
    """Return the facts of a mask from its number of voxels by x."""
    count = int(columns.sum())
    voxel_ml, dx = float(np.prod(volume.spacing_mm_zyx)) / 1000, volume.spacing_mm_zyx[2]
    x_mm = float((columns * np.arange(columns.size)).sum() / count) * dx if count else None
    return MaskFacts(voxels=count, volume_ml=count * voxel_ml, x_mm=x_mm)
