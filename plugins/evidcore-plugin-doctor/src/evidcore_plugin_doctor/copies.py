"""Volumes that stand in a data set twice, and what that means for its splits.

Equal voxels are a fault wherever they stand. What is only alike is none within one patient and one split:
scanners give several reconstructions of one examination, and published sets hold them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from evidcore.case import Case, Split
from evidcore_plugin_doctor.fault import Fault, Severity
from evidcore_plugin_doctor.likeness import Library


class Copy(NamedTuple):
    """A volume and whose it is."""

    split: Split
    case: Case
    file: str
    digest: str  # of its voxels


def copied_volumes(volumes: Sequence[Copy], library: Library) -> tuple[list[Fault], int]:
    """Return a fault for each volume that was there before, with the first that is like it.

    Args:
        volumes: in the order in which the library has them.
        library: their structures.

    Returns:
        The faults, and how many volumes are like others of their patient and split.
    """
    faults: list[Fault] = []
    first: dict[str, Copy] = {}
    equal: set[int] = set()
    for number, volume in enumerate(volumes):
        before = first.setdefault(volume.digest, volume)
        if before.case.id != volume.case.id:
            equal.add(number)
            where = " (the same file)" if before.file == volume.file else f" ({before.file})"
            text = f"the voxels are those of case {before.case.id!r}{where}"
            faults.append(_fault("duplicate", volume, before, text))
    pairs = {(alike.first, alike.second): alike for alike in library.alike()}
    originals: dict[int, int] = {}  # of the copies
    relatives = 0
    for (earlier, later), alike in pairs.items():
        before, volume = volumes[earlier], volumes[later]
        if {earlier, later} & equal or later in originals or volume.case.id == before.case.id:
            continue
        if (originals.get(earlier), later) in pairs:
            continue  # compared with the original
        patient = volume.case.patient
        if patient is not None and (patient, volume.split) == (before.case.patient, before.split):
            relatives += 1
            continue
        originals[later] = earlier
        shift = ", ".join(f"{step:.0f}" for step in alike.shift_mm)
        turned = f"turned by {alike.turn_degrees:.0f} degrees and " if alike.turn_degrees >= 1 else ""
        text = (
            f"shows what case {before.case.id!r} shows ({before.file}): correlation {alike.agreement:.3f} "
            f"over {100 * alike.overlap:.0f} % of the smaller one, {turned}shifted by ({shift}) mm (z, y, "
            "x). It is another crop, resampling, turned or noisy copy"
        )
        faults.append(_fault("near-duplicate", volume, before, text))
    return faults, relatives


def _fault(check: str, volume: Copy, before: Copy, text: str) -> Fault:
    severity: Severity = "warning"
    if volume.split != before.split:
        severity = "error"
        text += f"; it is in {volume.split}, the other in {before.split}"
    patient, other = volume.case.patient, before.case.patient
    if None in (patient, other):
        remedy = "Drop one of them, or keep both in one split."
    elif patient == other:
        remedy = "Drop one of them."
    else:
        severity = "error" if check == "duplicate" else severity
        text += f"; patients {patient!r} and {other!r}"
        remedy = "Find out whose it is, and drop the other."
    return Fault(
        check=check, severity=severity, case=volume.case.id, file=volume.file, text=f"{text}. {remedy}"
    )
