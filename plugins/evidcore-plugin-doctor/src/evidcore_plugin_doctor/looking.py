"""One case looked at: its files are read once, and what is left of them fits through a pipe.

Runs in worker processes; imports no torch.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path

from evidcore.case import Case, MaskRef, VolumeRef
from evidcore.data import Geometry, Volume, read_geometry
from evidcore.data.reading import opened, volume_of
from evidcore.errors import DataError
from evidcore_plugin_doctor.anatomy import find_body, find_tissue, misplaced
from evidcore_plugin_doctor.coarse import Coarse, coarsen
from evidcore_plugin_doctor.fault import Fault, Severity
from evidcore_plugin_doctor.fill import cut_away, empty_parts, hollow
from evidcore_plugin_doctor.intensity import impossible, not_hounsfield
from evidcore_plugin_doctor.likeness import Fingerprint, fingerprint
from evidcore_plugin_doctor.masks import Mask, look_at_masks
from evidcore_plugin_doctor.memory import refuse_oversized
from evidcore_plugin_doctor.organs import AXES
from evidcore_plugin_doctor.rendering import MOST_PICTURES, Picture, Rendering, axes_of, render
from evidcore_plugin_doctor.slices import torn
from evidcore_plugin_doctor.spacing import too_small, unlikely

Said = tuple[str, Severity, str, str]  # check, severity, file, text
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
        said, body = _seen(ref, volume, coarse)
        tissue = None if coarse is None or body is None else find_tissue(coarse)
        seen = look_at_masks(masks, volume, tissue, files.present)
        said += [("mask", one.severity, one.file, one.text) for one in seen.faults]
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


def _seen(ref: VolumeRef, volume: Volume, coarse: Coarse | None) -> tuple[list[Said], Mask | None]:
    """Say what is wrong with voxel sizes and values; return the body where the values are those of a CT."""
    odd = [("spacing", *one) for one in unlikely(ref, volume.geometry, _stated(ref, volume.geometry))]
    small = too_small(volume) if ref.intensity == "hu" and not odd else None
    odd += [("spacing", *small)] if small else []
    empty = [("fill", *one) for one in empty_parts(volume)]
    wrong = not_hounsfield(volume) if ref.intensity == "hu" else None
    single = impossible(volume) if ref.intensity == "hu" else None
    strange = [("intensity", *one) for one in (single, wrong) if one]
    if ref.intensity == "hu" and not strange:
        cut = [] if empty else [("fill", *one) for one in cut_away(volume)]
        empty += cut or [("fill", *one) for one in hollow(volume)]
    order = [("slices", *one) for one in torn(volume)]
    said = [(check, severity, ref.path, text) for check, severity, text in (*odd, *empty, *strange, *order)]
    is_ct = ref.intensity == "hu" and coarse is not None and wrong is None
    return said, find_body(coarse) if is_ct and coarse is not None else None


def _stated(ref: VolumeRef, used: Geometry) -> Geometry:
    """Return the grid as the file alone says; what is used where it says none, as a bare array."""
    if ref.spacing_mm_zyx is None:
        return used
    try:
        return read_geometry(dataclasses.replace(ref, spacing_mm_zyx=None))
    except DataError:
        return used


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
