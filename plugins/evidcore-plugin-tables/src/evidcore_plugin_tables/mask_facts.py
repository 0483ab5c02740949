"""What can be said about a case from its masks alone: how much there is of each, and where it lies."""

import collections
import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from evidcore.api import Cache, Case, DataError, MaskRef, VolumeRef, read, read_mask
from evidcore.data import Array, Volume, content_hash
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
    dx = volume.spacing_mm_zyx[2]
    result: dict[str, MaskFacts] = {}
    files: dict[str, dict[str, MaskRef]] = collections.defaultdict(dict)
    for name, mask in masks.items():
        files[mask.path][name] = mask
    for together in files.values():
        result |= _label_map(volume, together) if len(together) > 1 else {}
        for name in together.keys() - result.keys():
            result[name] = _from_columns(volume, read_mask(together[name], like=volume).sum(axis=(0, 1)))
    body_mm = midline_mm(volume) if body else None
    return CaseFacts(masks=result, body_mm=body_mm, grid_mm=(volume.shape_zyx[2] - 1) / 2 * dx)


def _label_map(volume: Volume, masks: Mapping[str, MaskRef]) -> dict[str, MaskFacts]:
    """Measure many labels of one file in one pass; nothing where they are no labels, or need placing."""
    if any(ref.label is None or ref.key is not None for ref in masks.values()):
        return {}
    path = next(iter(masks.values())).path
    labels = read(VolumeRef(path=path, intensity="arbitrary"))
    if labels.array.dtype != np.int16 or not labels.geometry.fits(volume.geometry):
        return {}  # read_mask reconciles them or says what is wrong
    wanted = {ref.label for ref in masks.values()}
    columns = {label: (labels.array == label).sum(axis=(0, 1)) for label in wanted}
    return {name: _from_columns(volume, columns[ref.label]) for name, ref in masks.items()}


def _from_columns(volume: Volume, columns: Array) -> MaskFacts:
    """Return the facts of a mask from its number of voxels by x."""
    count = int(columns.sum())
    voxel_ml, dx = float(np.prod(volume.spacing_mm_zyx)) / 1000, volume.spacing_mm_zyx[2]
    x_mm = float((columns * np.arange(columns.size)).sum() / count) * dx if count else None
    return MaskFacts(voxels=count, volume_ml=count * voxel_ml, x_mm=x_mm)
