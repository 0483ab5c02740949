"""One case looked at: its files are read once, and what is left of them fits through a pipe.

Runs in worker processes; imports no torch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import math
import resource
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import psutil

from evidcore.api import Case, DataError, VolumeRef
from evidcore.data import Geometry, Volume, read_geometry
from evidcore.data.reading import opened, volume_of
from evidcore_plugin_doctor.anatomy import find_body, find_tissue, misplaced
from evidcore_plugin_doctor.coarse import coarsen
from evidcore_plugin_doctor.fault import Fault, Remark
from evidcore_plugin_doctor.fill import cut_away, empty_parts, even_regions
from evidcore_plugin_doctor.intensity import impossible, not_hounsfield
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inspected:
    """What was seen of a case."""

    faults: tuple[Fault, ...]
    volumes: tuple[VolumePrint, ...]  # those that could be read
    mask_voxels: Mapping[str, int]  # by mask name; those that could be read
    pictures: tuple[Picture, ...] = ()  # of the volumes that could be read, where they were asked for


def inspect(case: Case, processes: int = 1, rendering: Rendering | None = None) -> Inspected:
    """Read the volumes and masks of a case and name everything that is wrong with them.

    Args:
        case: its volumes, masks and findings are enough.
        processes: that read at once and share the memory.
        rendering: how volumes are drawn; None for no pictures.
    """
    faults: list[Fault] = []
    prints: list[VolumePrint] = []
    pictures: list[Picture] = []
    voxels: Mapping[str, int] = {}
    present = frozenset(case.present())

    def add(check: str, remarks: Iterable[Remark], file: str) -> None:
        faults.extend(
            Fault(check=check, severity=severity, case=case.id, file=file, text=text)
            for severity, text in remarks
        )

    for index, ref in enumerate(case.volumes):
        masks = case.masks if index == 0 else {}  # masks lie on the grid of the first volume
        try:
            volume, axes = _read(ref, processes)
        except DataError as error:
            add("file", [("error", str(error).removeprefix(f"{ref.path}: "))], ref.path)
            for name, mask in masks.items():
                if not Path(mask.path).exists():
                    text = f"{name!r}: there is no such file. Check the path in the table or the recipe."
                    add("mask", [("error", text)], mask.path)
            continue
        coarse = coarsen(volume)
        scan = Scan(ref, volume)
        for check in VOLUME_CHECKS:
            add(check.kind, scan.run(check), ref.path)
        is_body = coarse is not None and scan.is_ct and scan.is_free_of("scale of values")
        body = find_body(coarse) if coarse is not None and is_body else None
        tissue = None if coarse is None or body is None else find_tissue(coarse)
        looked = look_at_masks(masks, volume, tissue, present)
        for severity, file, text in looked.faults:
            add("mask", [(severity, text)], file)
        anatomy = misplaced(coarse, body) if coarse is not None and body is not None else {}
        for axis in AXES:
            reasons = [source[axis] for source in (anatomy, looked.backwards) if axis in source]
            if reasons:
                add("orientation", [("error", f"{'; '.join(reasons)}. {_MIRRORED}")], ref.path)
        digest = hashlib.blake2b(volume.array.tobytes(), digest_size=16)
        digest.update(repr((volume.array.dtype.str, volume.shape_zyx)).encode())
        structure = None if coarse is None else fingerprint(coarse, ref.intensity)
        prints.append(VolumePrint(file=ref.path, digest=digest.hexdigest(), structure=structure))
        voxels = looked.voxels if index == 0 else voxels
        if rendering is not None and len(pictures) < MOST_PICTURES:
            pictures.append(render(ref, volume, axes, masks, looked.voxels, present, rendering))
    return Inspected(
        faults=tuple(faults), volumes=tuple(prints), mask_voxels=voxels, pictures=tuple(pictures)
    )


def _read(ref: VolumeRef, processes: int) -> tuple[Volume, str]:
    """Read a volume, unless its header says that it does not fit into memory; and its file's axes."""
    stored, placement = opened(ref)
    refuse_oversized(ref, placement.geometry, processes)
    try:
        return volume_of(ref, stored, placement), axes_of(placement)
    except MemoryError as cause:
        raise DataError(
            f"{ref.path}: is too large for memory: reading its voxels failed, though its header states "
            f"{placement.geometry}. Write it again, or check it on a machine with more memory."
        ) from cause


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


@dataclasses.dataclass(frozen=True)
class Scan:
    """A volume, and what has been found in it so far, by check."""

    ref: VolumeRef
    volume: Volume
    remarks: dict[str, list[Remark]] = dataclasses.field(default_factory=dict)

    @property
    def is_ct(self) -> bool:
        """Tell whether the values are said to be Hounsfield units."""
        return self.ref.intensity == "hu"

    def is_free_of(self, *checks: str) -> bool:
        """Tell whether none of these checks found anything."""
        return not any(self.remarks.get(check) for check in checks)

    def run(self, check: Check) -> list[Remark]:
        """Return what a check finds; nothing where it does not apply."""
        if check.applies(self):
            self.remarks[check.name] = [remark for remark in check.run(self) if remark]
        return self.remarks.get(check.name, [])


@dataclasses.dataclass(frozen=True)
class Check:
    """One thing that is looked for in every volume to which it applies."""

    name: str
    kind: str  # of its faults, one of CHECKS
    run: Callable[[Scan], Iterable[Remark | None]]
    applies: Callable[[Scan], bool] = lambda scan: True


def _is_ct_in_hu(scan: Scan) -> bool:
    return scan.is_ct and scan.is_free_of("single voxels", "scale of values")


VOLUME_CHECKS = (  # in this order: some apply only where others found nothing
    Check("size of voxels", "spacing", lambda scan: unlikely(scan.ref, scan.volume.geometry, _stated(scan))),
    Check("size of the body", "spacing", lambda scan: [too_small(scan.volume)],
          lambda scan: scan.is_ct and scan.is_free_of("size of voxels")),
    Check("single voxels", "intensity", lambda scan: [impossible(scan.volume)], lambda scan: scan.is_ct),
    Check("scale of values", "intensity", lambda scan: [not_hounsfield(scan.volume)],
          lambda scan: scan.is_ct),
    Check("single values", "fill", lambda scan: empty_parts(scan.volume)),
    Check("background", "fill", lambda scan: cut_away(scan.volume),
          lambda scan: _is_ct_in_hu(scan) and scan.is_free_of("single values")),
    Check("regions", "fill", lambda scan: even_regions(scan.volume),
          lambda scan: _is_ct_in_hu(scan) and scan.is_free_of("background")),
    Check("order of slices", "slices", lambda scan: disordered(scan.volume)),
)  # fmt: skip


def _stated(scan: Scan) -> Geometry:
    """Return the grid as the file alone says; what is used where it says none, as a bare array."""
    if scan.ref.spacing_mm_zyx is not None:
        with contextlib.suppress(DataError):
            return read_geometry(dataclasses.replace(scan.ref, spacing_mm_zyx=None))
    return scan.volume.geometry
