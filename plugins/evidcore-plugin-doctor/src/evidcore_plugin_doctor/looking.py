"""One case looked at: its files are read once, and what is left of them fits through a pipe.

Runs in worker processes; imports no torch.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from evidcore.case import Case, MaskRef, VolumeRef
from evidcore.data import Geometry, Volume, read_geometry
from evidcore.data.reading import opened, volume_of
from evidcore.errors import DataError
from evidcore_plugin_doctor.anatomy import find_body, find_tissue, misplaced
from evidcore_plugin_doctor.coarse import Coarse, coarsen
from evidcore_plugin_doctor.fault import Fault, Said, Severity
from evidcore_plugin_doctor.fill import cut_away, empty_parts, hollow
from evidcore_plugin_doctor.intensity import impossible, not_hounsfield
from evidcore_plugin_doctor.likeness import Fingerprint, fingerprint
from evidcore_plugin_doctor.masks import look_at_masks
from evidcore_plugin_doctor.memory import refuse_oversized
from evidcore_plugin_doctor.organs import AXES
from evidcore_plugin_doctor.rendering import MOST_PICTURES, Picture, Rendering, axes_of, render
from evidcore_plugin_doctor.slices import torn
from evidcore_plugin_doctor.spacing import too_small, unlikely

_MIRRORED = "Look at the scan in a viewer; if it is mirrored, write it again with a right affine."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Files:
    """What of a case is looked at."""

    case: str
    volumes: tuple[VolumeRef, ...]
    masks: Mapping[str, MaskRef]
    present: frozenset[str]
    processes: int = 1  # that read at once and share the memory
    rendering: Rendering | None = None  # None for no pictures

    @classmethod
    def of(cls, case: Case, processes: int = 1, rendering: Rendering | None = None) -> Files:
        """Take the files of a case."""
        return cls(
            rendering=rendering,
            processes=processes,
            case=case.id,
            volumes=case.volumes,
            masks=dict(case.masks),
            present=frozenset(case.present()),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Print:
    """What a volume is recognised by."""

    file: str
    digest: str  # of the voxels in body axes
    structure: Fingerprint | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Looked:
    """What was seen of a case."""

    faults: tuple[Fault, ...]
    prints: tuple[Print, ...]  # of the volumes that could be read
    mask_voxels: Mapping[str, int]  # by mask name; those that could be read
    pictures: tuple[Picture, ...] = ()  # of the volumes that could be read, where they were asked for


def look(files: Files) -> Looked:
    """Read the volumes and masks of a case and say everything that is wrong with them."""
    faults: list[Fault] = []
    prints: list[Print] = []
    pictures: list[Picture] = []
    voxels: Mapping[str, int] = {}
    for index, ref in enumerate(files.volumes):
        masks = files.masks if index == 0 else {}  # masks lie on the grid of the first volume
        try:
            volume, axes = _read(ref, files.processes)
        except DataError as error:
            faults.append(_unreadable(files.case, ref.path, error))
            faults += [_missing(files.case, name, mask) for name, mask in masks.items() if _is_gone(mask)]
            continue
        coarse = coarsen(volume)
        scan = Scan(ref, volume)
        said = list(_seen(scan))
        is_body = coarse is not None and scan.is_ct and scan.is_free_of("scale of values")
        body = find_body(coarse) if coarse is not None and is_body else None
        tissue = None if coarse is None or body is None else find_tissue(coarse)
        seen = look_at_masks(masks, volume, tissue, files.present)
        said += [("mask", *one) for one in seen.faults]
        anatomy = misplaced(coarse, body) if coarse is not None and body is not None else {}
        for axis in AXES:
            reasons = [source[axis] for source in (anatomy, seen.backwards) if axis in source]
            if reasons:
                text = f"{'; '.join(reasons)}. {_MIRRORED}"
                said.append(("orientation", "error", ref.path, text))
        faults += [
            Fault(check=check, severity=severity, case=files.case, file=file, text=text)
            for check, severity, file, text in said
        ]
        prints.append(_print(ref, volume, coarse))
        voxels = seen.voxels if index == 0 else voxels
        if files.rendering is not None and len(pictures) < MOST_PICTURES:
            picture = render(ref, volume, axes, masks, seen.voxels, files.present, files.rendering)
            pictures.append(picture)
    return Looked(faults=tuple(faults), prints=tuple(prints), mask_voxels=voxels, pictures=tuple(pictures))


def _read(ref: VolumeRef, processes: int) -> tuple[Volume, str]:
    """Read a volume, unless its header says that it does not fit into memory; and where its file's axes run.

    Raises:
        DataError: if it cannot be used, or is too large.
    """
    stored, placement = opened(ref)
    refuse_oversized(ref, placement.geometry, processes)
    try:
        return volume_of(ref, stored, placement), axes_of(placement)
    except MemoryError as cause:
        raise DataError(
            f"{ref.path}: is too large for memory: reading its voxels failed, though its header states "
            f"{placement.geometry}. Write it again, or check it on a machine with more memory."
        ) from cause


@dataclasses.dataclass(frozen=True)
class Scan:
    """A volume, and what has been found in it so far, by check."""

    ref: VolumeRef
    volume: Volume
    found: dict[str, list[Said]] = dataclasses.field(default_factory=dict)

    @property
    def is_ct(self) -> bool:
        """Tell whether the values are said to be Hounsfield units."""
        return self.ref.intensity == "hu"

    def is_free_of(self, *checks: str) -> bool:
        """Tell whether none of these checks found anything."""
        return not any(self.found.get(check) for check in checks)


@dataclasses.dataclass(frozen=True)
class Check:
    """One thing that is looked for in every volume to which it applies."""

    name: str
    kind: str  # of its faults, one of CHECKS
    run: Callable[[Scan], Iterable[Said | None]]
    applies: Callable[[Scan], bool] = lambda scan: True


VOLUME_CHECKS = (  # in this order: some apply only where others found nothing
    Check("size of voxels", "spacing", lambda scan: unlikely(scan.ref, scan.volume.geometry, _stated(scan))),
    Check("size of the body", "spacing", lambda scan: [too_small(scan.volume)],
          lambda scan: scan.is_ct and scan.is_free_of("size of voxels")),
    Check("single values", "fill", lambda scan: empty_parts(scan.volume)),
    Check("single voxels", "intensity", lambda scan: [impossible(scan.volume)], lambda scan: scan.is_ct),
    Check("scale of values", "intensity", lambda scan: [not_hounsfield(scan.volume)],
          lambda scan: scan.is_ct),
    Check("background", "fill", lambda scan: cut_away(scan.volume), lambda scan: scan.is_ct
          and scan.is_free_of("single values", "single voxels", "scale of values")),
    Check("regions", "fill", lambda scan: hollow(scan.volume), lambda scan: scan.is_ct
          and scan.is_free_of("background", "single voxels", "scale of values")),
    Check("order of slices", "slices", lambda scan: torn(scan.volume)),
)  # fmt: skip
_TOLD = ("spacing", "fill", "intensity", "slices")  # the order of their faults


def _seen(scan: Scan) -> Iterator[tuple[str, Severity, str, str]]:
    """Run the checks; yield kind, severity, file and text of each fault."""
    for check in VOLUME_CHECKS:
        if check.applies(scan):
            scan.found[check.name] = [one for one in check.run(scan) if one]
    for check in sorted(VOLUME_CHECKS, key=lambda check: _TOLD.index(check.kind)):
        for severity, text in scan.found.get(check.name, ()):
            yield check.kind, severity, scan.ref.path, text


def _stated(scan: Scan) -> Geometry:
    """Return the grid as the file alone says; what is used where it says none, as a bare array."""
    if scan.ref.spacing_mm_zyx is None:
        return scan.volume.geometry
    try:
        return read_geometry(dataclasses.replace(scan.ref, spacing_mm_zyx=None))
    except DataError:
        return scan.volume.geometry


def _print(ref: VolumeRef, volume: Volume, coarse: Coarse | None) -> Print:
    digest = hashlib.blake2b(volume.array.tobytes(), digest_size=16)
    digest.update(repr((volume.array.dtype.str, volume.shape_zyx)).encode())
    structure = None if coarse is None else fingerprint(coarse, ref.intensity)
    return Print(file=ref.path, digest=digest.hexdigest(), structure=structure)


def _unreadable(case: str, file: str, error: DataError) -> Fault:
    text = str(error).removeprefix(f"{file}: ")
    return Fault(check="file", severity="error", case=case, file=file, text=text)


def _is_gone(mask: MaskRef) -> bool:
    return not Path(mask.path).exists()


def _missing(case: str, name: str, mask: MaskRef) -> Fault:
    text = f"{name!r}: there is no such file. Check the path in the table or the recipe."
    return Fault(check="mask", severity="error", case=case, file=mask.path, text=text)
