"""One thing that is wrong with a data set."""

import dataclasses
from collections.abc import Mapping
from typing import Literal

Severity = Literal["error", "warning"]
Remark = tuple[Severity, str]  # of a volume: how bad, and what is wrong, what would be right, what to do


def error(text: str) -> Remark:
    """Return what makes training or evaluation wrong."""
    return "error", text


def warning(text: str) -> Remark:
    """Return what works, but is very likely not what was meant."""
    return "warning", text


# What is looked for, in the order of docs/start/own_scans.md.
CHECKS: Mapping[str, str] = {
    "table": "rows and cells that cannot be read",
    "id": "case ids that stand twice",
    "split": "patients and ids that are in two splits, in another spelling too",
    "file": "volumes that cannot be read: missing, cut off, NaN, 2D, without orientation, too large for "
    "memory",
    "spacing": "voxels of an unlikely size",
    "intensity": "values that are not Hounsfield units: rescaled twice, not at all, scaled, negated, "
    "windowed, MR",
    "fill": "slices, regions and volumes that hold a single value",
    "slices": "slices out of order, repeated, missing, of another scan, or on another scale",
    "orientation": "anatomy on the wrong side",
    "mask": "masks of another grid, empty, full, mirrored, outside the body, on the wrong side",
    "duplicate": "the same voxels under two names",
    "near-duplicate": "another crop, resampling, turned or noisy copy of a volume",
    "report": "one report, or nearly, for two patients",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fault:
    """What is wrong, where, and what to do about it.

    An error makes training or evaluation wrong; a warning works, but is very likely not what was meant.
    """

    check: str  # one of CHECKS
    severity: Severity
    case: str = ""  # "" where it belongs to no one case
    file: str = ""  # "" where it belongs to no one file
    text: str  # what is wrong with its value, what would be right, what to do

    def line(self) -> str:
        """Return the fault in one line."""
        where = ", ".join(part for part in (f"case {self.case!r}" if self.case else "", self.file) if part)
        parts = [self.check, where, " ".join(self.text.split())]
        return f"{self.severity:7} {': '.join(part for part in parts if part)}"
