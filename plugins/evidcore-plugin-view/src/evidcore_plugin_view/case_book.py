"""Which cases a run's data sets know, asked of a process of its own: data sets need torch, a viewer does not.

`python -m evidcore_plugin_view.case_book RUN` reads requests from its input and answers each with one line.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from evidcore.case import MaskRef

_SHOW_REPORTS = "--show-reports"


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
        self._words = [sys.executable, "-m", __name__, str(folder)]
        self._words += [_SHOW_REPORTS] if show_reports else []
        self._cases: dict[str, BookedCase] = {}
        self._asked: set[str] = set()
        self._answered: set[str] = set()
        self._faults: list[str] = []
        self._process: subprocess.Popen[str] | None = None
        self._listener: threading.Thread | None = None
        self._lock = threading.Lock()

    def ask(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Have the cases of some lines looked up; those that were asked about before are left out.

        Args:
            lines: of answers or groups: stage, case_id, images.
        """
        with self._lock:
            wanted: dict[str, Mapping[str, Any]] = {}
            for line in lines:
                if str(line["case_id"]) not in self._asked:
                    wanted.setdefault(str(line["case_id"]), line)
            if not wanted:
                return
            self._asked |= wanted.keys()
            process = self._running()
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # it ended: what it said becomes a fault
                process.stdin.write(json.dumps(list(wanted.values())) + "\n")
                process.stdin.flush()

    def case(self, case_id: str) -> BookedCase | None:
        """Return a case; None while it is looked for, and where no data set has it."""
        return self._cases.get(case_id)

    def is_waiting(self, case_id: str) -> bool:
        """Tell whether a case is still looked for."""
        with self._lock:
            return case_id in self._asked and case_id not in self._answered and not self._faults

    def faults(self) -> list[str]:
        """Return a sentence for each data set that could not be read."""
        return list(self._faults)

    def close(self) -> None:
        """End the process."""
        with self._lock:
            process, listener = self._process, self._listener
        if process is not None and listener is not None:
            process.kill()
            listener.join()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                self._words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                text=True, encoding="utf-8", start_new_session=True,
            )  # fmt: skip
            self._listener = threading.Thread(target=self._listen, args=(self._process,), daemon=True)
            self._listener.start()
        return self._process

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        errors: list[str] = []
        reader = threading.Thread(target=lambda: errors.extend(process.stderr or ()), daemon=True)
        reader.start()
        for raw in process.stdout:
            told = json.loads(raw)
            with self._lock:
                self._cases |= {name: _booked(case) for name, case in told["cases"].items()}
                self._faults += [fault for fault in told["faults"] if fault not in self._faults]
                self._answered |= set(told["asked"])
        reader.join()
        if process.wait() > 0:
            said = errors[-1].strip() if errors else "it said nothing"
            with self._lock:
                self._faults.append(f"The data sets could not be read: {said}")


def _booked(told: Mapping[str, Any]) -> BookedCase:
    masks = {name: MaskRef(**ref) for name, ref in told["masks"].items()}
    return BookedCase(**{**told, "paths": tuple(told["paths"]), "masks": masks})


def main(folder: Path, *, show_reports: bool) -> None:
    """Answer requests until the input ends: a list of lines each, with the cases that they are about."""
    from evidcore.page.cases import look_up
    from evidcore.page.record import read_head

    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a data set prints is no answer
    head = read_head(folder)
    for request in sys.stdin:
        lines = json.loads(request)
        known, faults = look_up(head, lines)
        cases = {}
        for name, found in known.items():
            case, told = found.case, found.phantom or show_reports
            cases[name] = {
                "phantom": found.phantom,
                "paths": [ref.path for ref in case.volumes],
                "masks": {mask: dataclasses.asdict(ref) for mask, ref in case.masks.items()},
                "findings": [
                    {"name": one.name, "state": one.state, "side": one.side, "size_mm": one.size_mm}
                    for one in case.findings
                ],
                "report": dataclasses.asdict(case.report) if case.report is not None and told else None,
                "report_withheld": case.report is not None and not told,
            }
        asked = [str(line["case_id"]) for line in lines]
        print(json.dumps({"asked": asked, "cases": cases, "faults": faults}), file=answers, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), show_reports=_SHOW_REPORTS in sys.argv[2:])
