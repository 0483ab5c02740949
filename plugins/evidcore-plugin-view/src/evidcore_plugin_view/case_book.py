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
from typing import TYPE_CHECKING, Any

from evidcore.case import MaskRef

if TYPE_CHECKING:
    from evidcore_plugin_pages.cases import Known

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
            lines: of answers or groups: stage, task, case_id, images.
        """
        with self._lock:
            wanted: dict[str, Mapping[str, Any]] = {}
            for line in lines:
                if key_of(line) not in self._asked:
                    wanted.setdefault(key_of(line), line)
            if not wanted:
                return
            self._asked |= wanted.keys()
            process = self._running()
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # it ended: what it said becomes a fault
                process.stdin.write(json.dumps(list(wanted.values())) + "\n")
                process.stdin.flush()

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
                self._cases |= {key: _booked(case) for key, case in told["cases"].items()}
                self._faults += [fault for fault in told["faults"] if fault not in self._faults]
                self._answered |= set(told["asked"])
        reader.join()
        if process.wait() > 0:
            said = errors[-1].strip() if errors else "it said nothing"
            with self._lock:
                self._faults.append(f"The data sets could not be read: {said}")


def key_of(line: Mapping[str, Any]) -> str:
    """Return what a line's case is booked under; data sets of other tasks may have a case of the same id."""
    return f"{line['task']}/{line['case_id']}"


def _booked(told: Mapping[str, Any]) -> BookedCase:
    masks = {name: MaskRef(**ref) for name, ref in told["masks"].items()}
    return BookedCase(**{**told, "paths": tuple(told["paths"]), "masks": masks})


def main(folder: Path, *, show_reports: bool) -> None:
    """Answer requests until the input ends: a list of lines each, with the cases that they are about."""
    from evidcore_plugin_pages.cases import look_up

    from evidcore.runs.read import read_head

    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a data set prints is no answer
    head = read_head(folder)
    for request in sys.stdin:
        by_task: dict[str, list[Mapping[str, Any]]] = {}
        for line in json.loads(request):
            by_task.setdefault(str(line["task"]), []).append(line)
        for lines in by_task.values():
            known, faults = look_up(head, lines)
            found = {key_of(line): known[line["case_id"]] for line in lines if line["case_id"] in known}
            told = {
                "asked": [key_of(line) for line in lines],
                "cases": {key: _told(one, show_reports=show_reports) for key, one in found.items()},
                "faults": faults,
            }
            print(json.dumps(told), file=answers, flush=True)


def _told(known: Known, *, show_reports: bool) -> dict[str, Any]:
    """Return the JSON form of a `BookedCase`."""
    case, may_tell = known.case, known.phantom or show_reports
    findings = [
        {"name": one.name, "state": one.state, "side": one.side, "size_mm": one.size_mm}
        for one in case.findings
    ]
    return {
        "phantom": known.phantom,
        "paths": [ref.path for ref in case.volumes],
        "masks": {mask: dataclasses.asdict(ref) for mask, ref in case.masks.items()},
        "findings": findings,
        "report": dataclasses.asdict(case.report) if case.report is not None and may_tell else None,
        "report_withheld": case.report is not None and not may_tell,
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]), show_reports=_SHOW_REPORTS in sys.argv[2:])
