"""Which cases a run's data sets know, looked up in the background."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from evidcore_plugin_hub.worker import Broken, Raised

from evidcore.case import MaskRef
from evidcore_plugin_view.asking import Asking, Errands


@dataclasses.dataclass(frozen=True, kw_only=True)
class BookedCase:
    """What a data set tells of a case; a real patient's report only where it may be shown."""

    phantom: bool
    paths: tuple[str, ...]  # of its volumes
    masks: Mapping[str, MaskRef]
    findings: tuple[Mapping[str, Any], ...]
    report: Mapping[str, Any] | None
    report_withheld: bool


class CaseBook:
    """Looks cases up in the background, in the order in which they are asked for.

    Args:
        folder: of the run.
        show_reports: whether reports of real patients may be told.
    """

    def __init__(self, folder: Path, *, show_reports: bool) -> None:
        self._folder, self._show_reports = folder, show_reports
        self._cases: dict[str, BookedCase] = {}
        self._asked: set[str] = set()
        self._answered: set[str] = set()
        self._faults: list[str] = []
        self._ask, self._errands = Asking(), Errands(self._look_up)
        self._lock = threading.Lock()

    def ask(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Have the cases of some lines looked up; those that were asked about before are left out.

        Args:
            lines: of answers or groups: stage, task, case_id, images.
        """
        by_task: dict[str, dict[str, Mapping[str, Any]]] = {}
        with self._lock:
            for line in lines:
                if key_of(line) not in self._asked:
                    by_task.setdefault(str(line["task"]), {}).setdefault(key_of(line), line)
            self._asked.update(*by_task.values())
        for wanted in by_task.values():
            self._errands.add(wanted)

    def case(self, line: Mapping[str, Any]) -> BookedCase | None:
        """Return the case of a line; None while it is looked for, and where no data set has it."""
        return self._cases.get(key_of(line))

    def is_waiting(self, line: Mapping[str, Any]) -> bool:
        """Tell whether the case of a line is still looked for."""
        with self._lock:
            return key_of(line) in self._asked - self._answered and not self._faults

    def faults(self) -> list[str]:
        """Return a sentence for each data set that could not be read."""
        return list(self._faults)

    def close(self) -> None:
        """End what was started for it."""
        self._errands.close(self._ask.close)

    def _look_up(self, wanted: Mapping[str, Mapping[str, Any]]) -> None:
        """Ask about the lines of one task, by what their cases are booked under."""
        try:
            told = self._ask("cases", self._folder, list(wanted.values()), self._show_reports)
        except (Broken, Raised) as cause:
            told = {"cases": {}, "faults": [f"The data sets could not be read: {cause}"]}
        with self._lock:
            known = {key: line["case_id"] for key, line in wanted.items()}
            self._cases |= {
                key: _booked(told["cases"][case]) for key, case in known.items() if case in told["cases"]
            }
            self._faults += [fault for fault in told["faults"] if fault not in self._faults]
            self._answered |= wanted.keys()


def key_of(line: Mapping[str, Any]) -> str:
    """Return what a line's case is booked under; data sets of other tasks may have a case of the same id."""
    return f"{line['task']}/{line['case_id']}"


def _booked(told: Mapping[str, Any]) -> BookedCase:
    masks = {name: MaskRef(**ref) for name, ref in told["masks"].items()}
    return BookedCase(**{**told, "paths": tuple(told["paths"]), "masks": masks})
