"""Run the cells of an ablation side by side: each is an `evid resume` of its run in a process of its own."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path

from evidcore.errors import RunError
from evidcore.runs.begin import start
from evidcore.runs.folder import RunFolder
from evidcore_plugin_lab.ablation.cells import AblationFolder, Cell

Ended = Callable[[Cell, Exception | None], None]
Tell = Callable[[str], None]
_LOOK_S = 2.0  # how often it is seen whether a stage that others wait for is there


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """A cell to bring to its end."""

    cell: Cell
    label: str  # what to call it
    stages: frozenset[Path]  # where its stages lie when they are finished

    @property
    def missing(self) -> frozenset[Path]:
        """Return which of its stages are not there yet."""
        return frozenset(stage for stage in self.stages if not stage.is_dir())


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Running:
    task: Task
    at: RunFolder
    process: subprocess.Popen[str]
    began_s: float


class Workers:
    """So many processes at a time, with the cores shared among them.

    A cell that needs a stage which another is about to compute waits until that stage is there, so that each
    is computed once.
    """

    def __init__(self, folder: AblationFolder, count: int, tell: Tell, *, accept_changes: bool) -> None:
        """Describe them; `tell` is given each line that a process says of its progress."""
        self.folder, self.count, self.tell = folder, count, tell
        self.arguments = ("--json", *(["--accept-changes"] if accept_changes else []))
        self.environment = {
            "OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // count)),
            **os.environ,
        }

    def run(self, tasks: Iterable[Task], ended: Ended) -> None:
        """Bring cells to their ends; `ended` is told of each, with what stopped it.

        Left early, as by Ctrl-C, it interrupts the processes and waits for them: each run keeps its last
        checkpoint.
        """
        waiting = list(tasks)
        running: dict[Future[str], _Running] = {}
        with ThreadPoolExecutor(self.count) as pool:
            try:
                while waiting or running:
                    while len(running) < self.count:
                        place = first_apart(waiting, [one.task for one in running.values()])
                        if place is None:
                            break
                        task = waiting.pop(place)
                        try:
                            one = self._begin(task)
                        except Exception as cause:
                            ended(task.cell, cause)
                            continue
                        running[pool.submit(self._follow, one)] = one
                    for future in wait(running, _LOOK_S, return_when=FIRST_COMPLETED).done:
                        one = running.pop(future)
                        self._record(one)
                        ended(dataclasses.replace(one.task.cell, run=one.at), _cause(one, future.result()))
            finally:
                for one in running.values():
                    one.process.send_signal(signal.SIGINT)
                for one in running.values():
                    one.process.wait()
                    self._record(one)

    def _begin(self, task: Task) -> _Running:
        """Start a cell's process."""
        at = task.cell.run or start(task.cell.recipe, self.folder.root)
        self.folder.record(task.cell, at, task.cell.seconds)
        self.tell(f"{task.label}: {at.path}")
        process = subprocess.Popen(
            [sys.executable, "-m", "evidcore", "resume", str(at.path), *self.arguments],
            env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            start_new_session=True,  # so that Ctrl-C reaches it once, from here
        )  # fmt: skip
        return _Running(task=task, at=at, process=process, began_s=time.monotonic())

    def _follow(self, one: _Running) -> str:
        """Tell what a process says until it ends, and return its last line."""
        last = ""
        with one.process:
            for line in one.process.stderr or ():
                last = line.strip() or last
                self.tell(f"{one.task.label} {line.rstrip()}")
        return last

    def _record(self, one: _Running) -> None:
        cell = one.task.cell
        self.folder.record(cell, one.at, cell.seconds + time.monotonic() - one.began_s)


def first_apart(waiting: Sequence[Task], running: Iterable[Task]) -> int | None:
    """Return which task to begin: the one with most to do of those that need nothing that is being computed.

    Args:
        waiting: those to choose from.
        running: those that compute what they miss.
    """
    taken = frozenset[Path]().union(*(task.missing for task in running))
    apart = [place for place, task in enumerate(waiting) if taken.isdisjoint(task.missing)]
    return max(apart, key=lambda place: len(waiting[place].missing), default=None)


def _cause(one: _Running, last_line: str) -> RunError | None:
    """Return what stopped a process that has ended, if it did not come to its end."""
    if one.process.returncode == 0:
        return None
    status = one.at.status()
    return RunError(status["message"] if status.get("state") == "failed" else last_line)
