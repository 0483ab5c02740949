"""Run the cells of an ablation: each an ordinary run, done once, gone on with after a kill.

Order of events: what has changed since cells ran is refused, accepted or run anew; then each cell that is not
finished is brought to its end, in this process, or several at a time by an `evid resume` each. A cell that
needs a stage which another is about to compute waits until that stage is there, so that each is computed
once. A cell that fails leaves the others as they are: it is reported at the end, and the next command goes on
with it.
"""

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import NamedTuple

from evidcore.cli.run import Progress
from evidcore.compute.processes import processes
from evidcore.errors import EvidError, RunError
from evidcore.hooks import write_pages
from evidcore.runs.begin import run, start
from evidcore.runs.folder import RunFolder, file_lock, write
from evidcore_plugin_lab.ablation.cells import AblationFolder, Cell
from evidcore_plugin_lab.ablation.outcome import check_metrics

Tell = Callable[[str], None]
Ended = Generator[tuple[Cell, Exception | None]]  # cells, with what stopped each
_LOOK_S = 2.0  # how often it is seen whether a stage that others wait for is there


@dataclasses.dataclass(frozen=True, kw_only=True)
class CellResult:
    """What became of the cells."""

    counted: tuple[Cell, ...]  # finished, and not changed since, or accepted as they are
    failures: Mapping[str, Exception]  # by the name of the cell that it stopped
    accepted: tuple[str, ...] = ()  # what has changed since of cells that count all the same


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """A cell to bring to its end."""

    cell: Cell
    label: str  # what to call it
    stages: frozenset[Path] = frozenset()  # where its stages lie when they are finished

    @property
    def missing(self) -> frozenset[Path]:
        """Return which of its stages are not there yet."""
        return frozenset(stage for stage in self.stages if not stage.is_dir())


def run_cells(
    folder: AblationFolder,
    *,
    arms: Sequence[str] = (),
    seeds: Sequence[int] = (),
    tell: Tell,
    command: str,
    is_quiet: bool = False,
    workers: int = 1,
    accept_changes: bool = False,
    rerun: bool = False,
) -> CellResult:
    """Run the cells that are not finished, and go on with those that are half done.

    `is_quiet` leaves stdout to the result. With several `workers` each cell runs in a process of its own, and
    `tell` is given each line that it says of its progress.
    """
    if processes().count > 1:
        raise RunError("an ablation starts its runs itself: leave the launcher out. --workers runs several.")
    chosen, failures = folder.chosen(arms, seeds), dict[str, Exception]()
    busy = f"another process is running this ablation. Wait for it; then `{command}` goes on."
    folder.path.mkdir(parents=True, exist_ok=True)
    with file_lock(folder.path, busy):
        changed = {cell.name: changes for cell in folder.cells() if (changes := _changes(cell))}
        if not rerun and not accept_changes:
            folder.refuse(changed, command)
        again = set(changed) if rerun else set()
        write(folder.path / "ablation.toml", folder.ablation.text)
        tasks = [
            Task(
                cell=dataclasses.replace(cell, run=None, seconds=0.0) if cell.name in again else cell,
                label=f"{cell.name} ({number}/{len(chosen)})",
            )
            for number, cell in enumerate(chosen, start=1)
        ]
        if workers > 1:
            ended = _side_by_side(folder, tasks, workers, tell, accept_changes)
        else:
            ended = _one_by_one(folder, tasks, tell, is_quiet, accept_changes)
        with contextlib.closing(ended):  # left early, as by Ctrl-C, it waits for what runs
            for cell, cause in ended:
                if cause is not None:
                    failures[cell.name] = cause
                    continue
                if cell.name in again:
                    changed.pop(cell.name, None)
                check_metrics(folder.ablation, cell)
        finished = [cell for cell in folder.cells() if cell.state == "finished"]
    counted = tuple(cell for cell in finished if accept_changes or cell.name not in changed)
    accepted = tuple(f"{cell.name}: {line}" for cell in counted for line in changed.get(cell.name, ()))
    return CellResult(counted=counted, failures=failures, accepted=accepted)


def _changes(cell: Cell) -> list[str]:
    """Return what has changed since a cell ran, or why that cannot be told."""
    try:
        return cell.changes()
    except EvidError as cause:
        # one that has to go on will fail with the same words, and leave the others
        return [f"cannot be told: {cause}"] if cell.state == "finished" else []


def _one_by_one(
    folder: AblationFolder, tasks: Iterable[Task], tell: Tell, is_quiet: bool, accept_changes: bool
) -> Ended:
    """Bring cells to their ends in this process."""
    for task in tasks:
        cell, cause = task.cell, None
        try:
            if cell.state != "finished":
                at = cell.run or start(cell.recipe, folder.root)
                folder.record(cell, at, cell.seconds)
                began_s = time.monotonic()
                try:
                    tell(f"{task.label}: {at.path}")
                    with Progress(to_stderr=is_quiet, label=task.label) as recorder:
                        run(at, [recorder], accept_changes=accept_changes)
                    write_pages(at.path)
                finally:
                    folder.record(cell, at, cell.seconds + time.monotonic() - began_s)
                cell = dataclasses.replace(cell, run=at)
        except Exception as raised:
            cause = raised
        yield cell, cause


class _Running(NamedTuple):
    """A task in a process of its own."""

    task: Task
    at: RunFolder
    process: subprocess.Popen[str]
    began_s: float


def _side_by_side(
    folder: AblationFolder, tasks: Iterable[Task], workers: int, tell: Tell, accept_changes: bool
) -> Ended:
    """Bring cells to their ends in processes of their own, so many at a time, which share the cores.

    Closed early, it interrupts the processes and waits for them: each run keeps its last checkpoint.
    """
    words = ["--json", *(["--accept-changes"] if accept_changes else [])]
    threads = max(1, len(os.sched_getaffinity(0)) // workers)
    waiting: list[Task] = []
    for task in tasks:
        if task.cell.state == "finished":
            yield task.cell, None
            continue
        try:
            stages = frozenset(task.cell.stage_folders(folder.root))
            waiting.append(dataclasses.replace(task, stages=stages))
        except Exception as cause:
            yield task.cell, cause
    running: dict[Future[str], _Running] = {}

    def follow(one: _Running) -> str:
        """Tell what a process says until it ends, and return its last line."""
        last = ""
        with one.process:
            for line in one.process.stderr or ():
                last = line.strip() or last
                tell(f"{one.task.label} {line.rstrip()}")
        return last

    def record(one: _Running) -> None:
        cell = one.task.cell
        folder.record(cell, one.at, cell.seconds + time.monotonic() - one.began_s)

    with ThreadPoolExecutor(workers) as pool:
        try:
            while waiting or running:
                while len(running) < workers:
                    index = first_apart(waiting, [one.task for one in running.values()])
                    if index is None:
                        break
                    task = waiting.pop(index)
                    try:
                        at = task.cell.run or start(task.cell.recipe, folder.root)
                    except Exception as raised:
                        yield task.cell, raised
                        continue
                    folder.record(task.cell, at, task.cell.seconds)
                    tell(f"{task.label}: {at.path}")
                    process = subprocess.Popen(
                        [sys.executable, "-P", "-m", "evidcore", "resume", str(at.path), *words],
                        env={"OMP_NUM_THREADS": str(threads), **os.environ},
                        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                        start_new_session=True,  # so that Ctrl-C reaches it once, from here
                    )  # fmt: skip
                    one = _Running(task, at, process, time.monotonic())
                    running[pool.submit(follow, one)] = one
                for future in wait(running, _LOOK_S, return_when=FIRST_COMPLETED).done:
                    one = running.pop(future)
                    record(one)
                    status = one.at.status()
                    last = status["message"] if status.get("state") == "failed" else future.result()
                    failed = RunError(last) if one.process.returncode else None
                    yield dataclasses.replace(one.task.cell, run=one.at), failed
        finally:
            for one in running.values():
                one.process.send_signal(signal.SIGINT)
            for one in running.values():
                one.process.wait()
                record(one)


def first_apart(waiting: Sequence[Task], running: Iterable[Task]) -> int | None:
    """Return which task to begin: that with most to do of those that need nothing that is being computed."""
    taken = frozenset[Path]().union(*(task.missing for task in running))
    apart = [index for index, task in enumerate(waiting) if taken.isdisjoint(task.missing)]
    return max(apart, key=lambda index: len(waiting[index].missing), default=None)
