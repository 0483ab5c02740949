"""Volumes that stand in a data set twice, and what that means for its splits."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from evidcore.case import Split
from evidcore_plugin_doctor.fault import Fault, Severity
from evidcore_plugin_doctor.likeness import Library
from evidcore_plugin_doctor.looking import Print


@dataclasses.dataclass(frozen=True, kw_only=True)
class Owner:
    """Whose volume it is."""

    case: str
    patient: str | None
    split: Split


class Copies:
    """Compares every volume with every other.

    Equal voxels are a fault wherever they stand. What is only alike is none within one patient and one split:
    scanners give several reconstructions of one examination, and published sets hold them all.
    """

    def __init__(self) -> None:
        """Start empty."""
        self.relatives = 0  # copies of a patient's own volumes within a split
        self._library = Library()
        self._owners: list[tuple[Owner, Print]] = []

    def __enter__(self) -> Copies:
        """Return itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Delete what was kept on disk."""
        self._library.__exit__(*error)

    def add(self, owner: Owner, found: Print) -> None:
        """Take in a volume."""
        self._owners.append((owner, dataclasses.replace(found, structure=None)))
        self._library.add(found.structure)

    def faults(self) -> Iterator[Fault]:
        """Yield one fault for each volume that was there before, with the first that is like it."""
        first: dict[str, int] = {}
        equal: set[int] = set()
        for number, (owner, found) in enumerate(self._owners):
            before = first.setdefault(found.digest, number)
            other, same = self._owners[before]
            if before != number and other.case != owner.case:
                equal.add(number)
                where = " (the same file)" if same.file == found.file else f" ({same.file})"
                text = f"the voxels are those of case {other.case!r}{where}"
                yield self._fault("duplicate", owner, found, other, text)
        pairs = {(alike.first, alike.second): alike for alike in self._library.alike()}
        told: dict[int, int] = {}  # a copy -> what it is a copy of
        for alike in pairs.values():
            owner, found = self._owners[alike.second]
            other, same = self._owners[alike.first]
            if {alike.first, alike.second} & equal or alike.second in told or owner.case == other.case:
                continue
            if (told.get(alike.first), alike.second) in pairs:
                continue  # compared with the original
            if owner.patient is not None and (owner.patient, owner.split) == (other.patient, other.split):
                self.relatives += 1
                continue
            told[alike.second] = alike.first
            shift = ", ".join(f"{step:.0f}" for step in alike.shift_mm)
            turned = f"turned by {alike.turn_degrees:.0f} degrees and " if alike.turn_degrees >= 1 else ""
            text = (
                f"shows what case {other.case!r} shows ({same.file}): correlation {alike.agreement:.3f} "
                f"over {100 * alike.overlap:.0f} % of the smaller one, {turned}shifted by ({shift}) mm (z, "
                "y, x). It is another crop, resampling, turned or noisy copy"
            )
            yield self._fault("near-duplicate", owner, found, other, text)

    @staticmethod
    def _fault(check: str, owner: Owner, found: Print, other: Owner, text: str) -> Fault:
        severity: Severity = "warning"
        if owner.split != other.split:
            severity = "error"
            text += f"; it is in {owner.split}, the other in {other.split}"
        if None in (owner.patient, other.patient):
            remedy = "Drop one of them, or keep both in one split."
        elif owner.patient == other.patient:
            remedy = "Drop one of them."
        else:
            severity = "error" if check == "duplicate" else severity
            text += f"; patients {owner.patient!r} and {other.patient!r}"
            remedy = "Find out whose it is, and drop the other."
        text = f"{text}. {remedy}"
        return Fault(check=check, severity=severity, case=owner.case, file=found.file, text=text)
