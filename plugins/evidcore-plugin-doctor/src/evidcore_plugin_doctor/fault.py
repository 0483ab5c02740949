"""One thing that is wrong with a data set, and which faults explain others."""

import dataclasses
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

Severity = Literal["error", "warning"]
Remark = tuple[Severity, str]  # of a volume: how bad, and what is wrong, what would be right, what to do


def error(text: str) -> Remark:
    """Return what makes training or evaluation wrong."""
    return "error", text


def warning(text: str) -> Remark:
    """Return what works, but is very likely not what was meant."""
    return "warning", text


_TABLES = tomllib.loads(Path(__file__).with_name("checks.toml").read_text(encoding="utf-8"))
# A kind of fault is a check, or a part of one ("spacing/body"): kind -> kinds that explain it. Where one of
# these is found in a case, what it explains is not told of that case.
EXPLAINED_BY: Mapping[str, list[str]] = _TABLES.pop("explained_by")
CHECKS: Mapping[str, str] = _TABLES  # what is looked for, in the order of docs/start/own_scans.md


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fault:
    """What is wrong, where, and what to do about it.

    An error makes training or evaluation wrong; a warning works, but is very likely not what was meant.
    """

    check: str  # one of CHECKS
    part: str = ""  # of the check, where its parts have causes of their own
    severity: Severity
    case: str = ""  # "" where it belongs to no one case
    other: str = ""  # the case that it is like, or contradicts
    file: str = ""  # "" where it belongs to no one file
    text: str  # what is wrong with its value, what would be right, what to do

    def line(self) -> str:
        where = ", ".join(part for part in (f"case {self.case!r}" if self.case else "", self.file) if part)
        parts = [self.check, where, " ".join(self.text.split())]
        return f"{self.severity:7} {': '.join(part for part in parts if part)}"

    @property
    def kind(self) -> str:
        """Return the check with its part."""
        return f"{self.check}/{self.part}" if self.part else self.check

    def is_explained(self, faults: Iterable["Fault"]) -> bool:
        """Tell whether one of the faults is its cause: of its case, or of the same two cases."""
        mine = {self.case, self.other} - {""}
        causes = (fault for fault in faults if fault.kind in EXPLAINED_BY.get(self.kind, ()))
        concerned = ({fault.case, fault.other} - {""} for fault in causes)
        return any(cases and (cases <= mine or mine <= cases) for cases in concerned)
