"""One case looked at: its files are read once, and what is left of them fits through a pipe.

Runs in worker processes; imports no torch.
"""

import contextlib
import dataclasses
import functools
import hashlib
import math
import resource
from collections.abc import Mapping
from pathlib import Path

import psutil

from evidcore.api import Case, DataError, VolumeRef
from evidcore.data import Geometry, Volume, read_geometry
from evidcore.data.reading import opened, volume_of
from evidcore_plugin_doctor.anatomy import find_body, find_tissue, misplaced
from evidcore_plugin_doctor.coarse import coarsen
from evidcore_plugin_doctor.fault import Fault, Remark, error
from evidcore_plugin_doctor.intensity import cut_away, empty_parts, even_regions, impossible, not_hounsfield
from evidcore_plugin_doctor.likeness import Fingerprint, fingerprint
from evidcore_plugin_doctor.masks import look_at_masks
from evidcore_plugin_doctor.organs import AXES
from evidcore_plugin_doctor.rendering import MOST_PICTURES, Picture, Rendering, axes_of, render
from evidcore_plugin_doctor.slices import disordered
from evidcore_plugin_doctor.spacing import too_small, unlikely

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
    pictures: list[Picture] = dataclasses.field(default_factory=list)  # of volumes, where asked for


def inspect(case: Case, processes: int = 1, rendering: Rendering | None = None) -> Inspected:
    """Read the volumes and masks of a case and name everything that is wrong with them.

    Args:
        case: its volumes, masks and findings are enough.
        processes: that read at once and share the memory.
        rendering: how volumes are drawn; None for no pictures.
    """
    seen = Inspected()
    present = frozenset(case.present())

    def add(check: str, file: str, *remarks: Remark) -> None:
        for severity, text in remarks:
            seen.faults.append(Fault(check=check, severity=severity, case=case.id, file=file, text=text))

    for index, ref in enumerate(case.volumes):
        masks = case.masks if index == 0 else {}  # masks lie on the grid of the first volume
        try:
            stored, placement = opened(ref)
            refuse_oversized(ref, placement.geometry, processes)
            volume = volume_of(ref, stored, placement)
        except (DataError, MemoryError) as cause:  # a header may state less than its file unpacks to
            text = str(cause).removeprefix(f"{ref.path}: ") or "is too large for memory."
            add("file", ref.path, error(text))
            for name, mask in masks.items():
                if not Path(mask.path).exists():
                    text = f"{name!r}: there is no such file. Check the path in the table or the recipe."
                    add("mask", mask.path, error(text))
            continue
        coarse = coarsen(volume)
        remarks, is_hounsfield = _look_at_voxels(ref, volume)
        for check, some in remarks.items():
            add(check, ref.path, *some)
        tissue = None
        anatomy: Mapping[str, str] = {}
        if coarse is not None and is_hounsfield and (body := find_body(coarse)) is not None:
            tissue = find_tissue(coarse)
            anatomy = misplaced(coarse, body)
        add_of_mask = functools.partial(add, "mask")
        voxels, backwards = look_at_masks(masks, volume, tissue, present, add_of_mask)
        for axis in AXES:
            reasons = [source[axis] for source in (anatomy, backwards) if axis in source]
            if reasons:
                add("orientation", ref.path, error(f"{'; '.join(reasons)}. {_MIRRORED}"))
        digest = hashlib.blake2b(volume.array.tobytes(), digest_size=16)
        digest.update(f"{volume.array.dtype.str} {volume.shape_zyx}".encode())
        structure = None if coarse is None else fingerprint(coarse, ref.intensity)
        seen.volumes.append(VolumePrint(file=ref.path, digest=digest.hexdigest(), structure=structure))
        if index == 0:
            seen.mask_voxels = voxels
        if rendering is not None and len(seen.pictures) < MOST_PICTURES:
            seen.pictures.append(render(volume, axes_of(placement), masks, voxels, present, rendering))
    return seen


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
        raise DataError(
            f"{ref.path}: is too large for memory: {shape} voxels (z, y, x) take {needed / _GIB:.1f} GiB "
            f"while they are read, {free / _GIB:.1f} GiB are free{shared}. Crop or resample the scan, or "
            "check it on a machine with more memory."
        )


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


def _look_at_voxels(ref: VolumeRef, volume: Volume) -> tuple[dict[str, list[Remark]], bool]:
    """Return what is wrong with the values of a volume by check, and whether they are Hounsfield units.

    Some checks say something only where others found nothing.
    """
    is_ct = ref.intensity == "hu"
    spacing = list(unlikely(ref, volume.geometry, _stated(ref, volume)))
    if is_ct and not spacing:
        spacing += filter(None, [too_small(volume)])
    scale = list(filter(None, [not_hounsfield(volume)])) if is_ct else []
    single_voxels = list(filter(None, [impossible(volume)])) if is_ct else []
    fill = list(empty_parts(volume))
    if is_ct and not scale and not single_voxels:
        background = [] if fill else list(cut_away(volume))
        fill += background or even_regions(volume)
    slices = list(disordered(volume))
    remarks = {"spacing": spacing, "intensity": [*single_voxels, *scale], "fill": fill, "slices": slices}
    return remarks, is_ct and not scale


def _stated(ref: VolumeRef, volume: Volume) -> Geometry:
    """Return the grid as the file alone says; what is used where it says none, as a bare array."""
    if ref.spacing_mm_zyx is not None:
        with contextlib.suppress(DataError):
            return read_geometry(dataclasses.replace(ref, spacing_mm_zyx=None))
    return volume.geometry
