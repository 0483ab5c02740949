"""One case looked at: its files are read once, and what is left of them fits through a pipe.

Runs in worker processes; imports no torch.
"""

import contextlib
import dataclasses
import hashlib
import math
import resource
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import psutil

from evidcore.api import Case, DataError, MaskRef, VolumeRef
from evidcore.data import Geometry, Volume, read_geometry
from evidcore.data.reading import opened, volume_of
from evidcore.data.stored import memory_named, unreadable
from evidcore_plugin_doctor.anatomy import find_body, find_spine, find_tissue, misplaced
from evidcore_plugin_doctor.coarse import STEP_MM, coarsen
from evidcore_plugin_doctor.fault import Fault, Remark, error
from evidcore_plugin_doctor.intensity import cut_away, empty_parts, even_regions, impossible, not_hounsfield
from evidcore_plugin_doctor.likeness import Fingerprint, fingerprint
from evidcore_plugin_doctor.masks import look_at_masks
from evidcore_plugin_doctor.organs import AXES
from evidcore_plugin_doctor.rendering import MOST_PICTURES, Picture, Rendering, axes_of, render
from evidcore_plugin_doctor.slices import disordered
from evidcore_plugin_doctor.spacing import too_small, unlike_table, unlikely

VOXEL_BYTES = 12  # float32 as stored, as a volume and in body axes; int16 takes half, and checks the other
_GIB = 2**30
_CGROUP = Path("/sys/fs/cgroup")
_MIRRORED = "Look at the scan in a viewer; if it is mirrored, write it again with a right affine."


@dataclasses.dataclass(frozen=True, kw_only=True)
class VolumePrint:
    """What a volume is recognised by."""

    file: str
    digest: str  # of the voxels in body axes
    structure: Fingerprint | None


@dataclasses.dataclass
class Inspected:
    """What was seen of a case."""

    faults: list[Fault] = dataclasses.field(default_factory=list)
    volumes: list[VolumePrint] = dataclasses.field(default_factory=list)  # those that could be read
    mask_voxels: Mapping[str, int] = dataclasses.field(default_factory=dict)  # of those that could be read
    labels: Mapping[str, list[int]] = dataclasses.field(default_factory=dict)  # that files of masks hold
    headers: list[tuple[str, Mapping[str, str]]] = dataclasses.field(default_factory=list)  # sex, age by file
    pictures: list[Picture] = dataclasses.field(default_factory=list)  # of volumes, where asked for


def inspect(case: Case, processes: int = 1, rendering: Rendering | None = None) -> Inspected:
    """Read the volumes and masks of a case and name everything that is wrong with them.

    Args:
        case: its volumes, masks and findings are enough, and the notes `sides` and `spacing`.
        processes: that read at once and share the memory.
        rendering: how volumes are drawn; None for no pictures.
    """
    seen = Inspected()
    present = frozenset(case.present())

    def add(kind: str, file: str, *remarks: Remark) -> None:
        check, _, part = kind.partition("/")
        seen.faults += (
            Fault(check=check, part=part, severity=severity, case=case.id, file=file, text=text)
            for severity, text in remarks
        )

    def look_at(ref: VolumeRef, masks: Mapping[str, MaskRef]) -> None:
        first = len(seen.faults)
        stored, placement = opened(ref)
        refuse_oversized(ref, placement.geometry, processes)
        volume = volume_of(ref, stored, placement)
        seen.headers.append((ref.path, stored.patient))
        coarse = coarsen(volume)
        remarks = list(_look_at_voxels(ref, volume))
        for kind, remark in remarks:
            add(kind, ref.path, remark)
        is_hounsfield = ref.intensity == "hu" and "intensity/scale" not in dict(remarks)
        if len(case.volumes) == 1:
            add("spacing/table", ref.path, *unlike_table(case.notes.get("spacing", ""), _stated(ref, volume)))
        tissue = spine_mm = None
        anatomy: Mapping[str, str] = {}
        if coarse is not None and is_hounsfield and (body := find_body(coarse)) is not None:
            tissue = find_tissue(coarse)
            anatomy = misplaced(coarse, body)
            if masks and (spine := find_spine(coarse, body)) is not None:
                spine_mm = (spine.x + 0.5) * STEP_MM
        for name in [name for name, mask in masks.items() if (mask.path, mask.key) == (ref.path, ref.key)]:
            add("mask", ref.path, error(f"{name!r}: the mask is the scan itself. Name its own file."))
        drawn = {name: mask for name, mask in masks.items() if (mask.path, mask.key) != (ref.path, ref.key)}
        sides = case.notes.get("sides", {})
        voxels, backwards, labels = look_at_masks(drawn, volume, tissue, present, add, sides, spine_mm)
        for axis in AXES:
            reasons = [source[axis] for source in (anatomy, backwards) if axis in source]
            if reasons:
                add("orientation", ref.path, error(f"{'; '.join(reasons)}. {_MIRRORED}"))
        structure = None if coarse is None else fingerprint(coarse, ref.intensity)
        seen.volumes.append(VolumePrint(file=ref.path, digest=digest_of(volume), structure=structure))
        if ref is case.volumes[0]:
            seen.mask_voxels, seen.labels = voxels, labels
        if rendering is not None and len(seen.pictures) < MOST_PICTURES:
            seen.pictures.append(render(volume, axes_of(placement), masks, voxels, present, rendering))
        every = seen.faults[first:]
        seen.faults[first:] = [fault for fault in every if not fault.is_explained(every)]

    for index, ref in enumerate(case.volumes):
        masks = case.masks if index == 0 else {}  # masks lie on the grid of the first volume
        try:
            with memory_named(ref.path):
                look_at(ref, masks)
        except DataError as cause:
            add("file", ref.path, error(str(cause).removeprefix(f"{ref.path}: ")))
            for name, mask in masks.items():
                if not Path(mask.path).exists():
                    text = str(unreadable(mask.path)).replace(mask.path, repr(name), 1)
                    add("mask", mask.path, error(text))
    return seen


def digest_of(volume: Volume) -> str:
    """Return what equal voxels share, whatever type, slope and rounding error their files have."""
    digest = hashlib.blake2b(str(volume.shape_zyx).encode(), digest_size=16)
    for plane in volume.array:
        shared = np.rint(plane) if volume.intensity == "hu" else plane
        digest.update((shared.astype(np.float32) + 0).tobytes())  # which makes 0 of -0
    return digest.hexdigest()


def refuse_oversized(ref: VolumeRef, geometry: Geometry, processes: int) -> None:
    """Stop at a volume that `processes` at once cannot hold in memory, before a voxel is unpacked.

    Raises:
        DataError: if it needs more than there is.
    """
    needed = math.prod(geometry.shape_zyx) * VOXEL_BYTES
    free = free_bytes() / processes
    if needed > free:
        shape = " x ".join(map(str, geometry.shape_zyx))
        shared = "" if processes == 1 else f" for each of {processes} processes (fewer at once have more)"
        why = f"{shape} voxels (z, y, x) take {needed / _GIB:.1f} GiB while they are read"
        room = f"{free / _GIB:.1f} GiB are free{shared}"
        remedy = "Crop or resample the scan, or check it on a machine with more memory."
        raise DataError(f"{ref.path}: is too large for memory: {why}, {room}. {remedy}")


def free_bytes() -> float:
    """Return how much more memory this process may take: of the machine, its limit and its control group."""
    free = [psutil.virtual_memory().available]
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY:  # a shell or scheduler sets it
        free.append(limit - psutil.Process().memory_info().vms)
    with contextlib.suppress(OSError, ValueError):  # no group of version 2, or no limit ("max")
        limit, used = (int((_CGROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        free.append(limit - used)
    return float(max(0, min(free)))


def _look_at_voxels(ref: VolumeRef, volume: Volume) -> Iterator[tuple[str, Remark]]:
    """Yield what is wrong with the voxels of a volume: the kind of fault, and what is wrong."""
    fill = "fill/empty" if volume.array.min() == volume.array.max() else "fill"
    looks: dict[str, Iterable[Remark | None]] = {fill: empty_parts(volume)}
    looks["spacing"] = unlikely(ref, volume.geometry, _stated(ref, volume))
    if ref.intensity == "hu":
        looks |= {"spacing/body": [too_small(volume)], "intensity": [impossible(volume)]}
        looks |= {"intensity/scale": [not_hounsfield(volume)], "fill/background": cut_away(volume)}
        looks |= {"fill/region": even_regions(volume)}
    for kind, remarks in looks.items():
        yield from ((kind, remark) for remark in remarks if remark is not None)
    yield from disordered(volume)


def _stated(ref: VolumeRef, volume: Volume) -> Geometry:
    """Return the grid as the file alone says; what is used where it says none, as a bare array."""
    if ref.spacing_mm_zyx is not None:
        with contextlib.suppress(DataError):
            return read_geometry(dataclasses.replace(ref, spacing_mm_zyx=None))
    return volume.geometry
