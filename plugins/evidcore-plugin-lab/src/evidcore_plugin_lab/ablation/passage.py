"""Go through the cells of an ablation: each an ordinary run, done once, gone on with after a kill."""

from __future__ import annotations

import contextlib
import dataclasses
import time
import traceback
from collections.abc import Callable, Sequence

from evidcore.compute.processes import processes
from evidcore.errors import EvidError, RunError
from evidcore.hooks import write_pages
from evidcore.runs.begin import run, start
from evidcore.runs.folder import RunFolder, held, write
from evidcore_plugin_lab.ablation.cells import AblationFolder, Cell
from evidcore_plugin_lab.ablation.outcome import check_metrics
from evidcore_plugin_lab.ablation.workers import Ended, Task, Tell, Workers

Watch = Callable[[RunFolder, str], contextlib.AbstractContextManager[object]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Failure:
    """A cell that did not come to its end."""

    cell: str
    message: str
    trace: str = ""  # where it is our bug or a component's


@dataclasses.dataclass(frozen=True, kw_only=True)
class Passed:
    """What became of the cells."""

    counted: tuple[Cell, ...]  # finished, and not changed since, or accepted as they are
    failures: tuple[Failure, ...]
    accepted: tuple[str, ...] = ()  # what has changed since of cells that count all the same


def go(
    folder: AblationFolder,
    *,
    arms: Sequence[str] = (),
    seeds: Sequence[int] = (),
    watch: Watch,
    tell: Tell,
    command: str,
    workers: int = 1,
    accept_changes: bool = False,
    rerun: bool = False,
) -> Passed:
    """Run the cells that are not finished, and go on with those that are half done.

    A cell that fails leaves the others as they are: it is reported at the end, and the next pass goes on
    with it.

    Args:
        folder: the ablation's.
        arms: only these; empty: all.
        seeds: only these; empty: all.
        watch: makes a recorder of a run in this process, given its folder and what to call the cell.
        tell: is given each line that a run in a process of its own says of its progress.
        command: what was typed, for messages.
        workers: cells at a time; above 1, each in a process of its own.
        accept_changes: count cells, and go on with them, although something has changed since they ran.
        rerun: run changed cells anew.

    Raises:
        RunError: if cells have changed since they ran and neither was asked for, if a headline metric is no
            row of the results, if another process is busy with this ablation, or if workers are asked for
            where a launcher has started several processes.
    """
    chosen = folder.chosen(arms, seeds)
    if workers > 1 and processes().count > 1:
        raise RunError("--workers starts processes of its own: leave it out under a launcher of several.")
    busy = f"another process is running this ablation. Wait for it; then `{command}` goes on."
    failures: list[Failure] = []
    if processes().is_first:
        folder.path.mkdir(parents=True, exist_ok=True)
    with held(folder.path, busy) if processes().is_first else contextlib.nullcontext():
        changed = _changed(folder) if processes().is_first else {}
        if not rerun and not accept_changes:
            folder.refuse(changed, command)
        again = set(processes().share(sorted(changed))) if rerun else set()
        if processes().is_first:
            write(folder.path / "ablation.toml", folder.ablation.text)
        labelled = [
            (
                dataclasses.replace(cell, run=None, seconds=0.0) if cell.name in again else cell,
                f"{cell.name} ({number}/{len(chosen)})",
            )
            for number, cell in enumerate(chosen, start=1)
        ]

        def ended(cell: Cell, cause: Exception | None) -> None:
            if cause is not None:
                failures.append(_failure(cell, cause))
                return
            if cell.name in again:
                changed.pop(cell.name, None)
            check_metrics(folder.ablation, cell)

        if workers > 1:
            _side_by_side(
                folder, labelled, Workers(folder, workers, tell, accept_changes=accept_changes), ended
            )
        else:
            _one_by_one(folder, labelled, watch, accept_changes, ended)
        finished = [cell for cell in folder.cells() if cell.state == "finished"]
    counted = tuple(cell for cell in finished if accept_changes or cell.name not in changed)
    accepted = tuple(f"{cell.name}: {line}" for cell in counted for line in changed.get(cell.name, ()))
    return Passed(counted=counted, failures=tuple(failures), accepted=accepted)


def _one_by_one(
    folder: AblationFolder,
    labelled: Sequence[tuple[Cell, str]],
    watch: Watch,
    accept_changes: bool,
    ended: Ended,
) -> None:
    """Bring cells to their ends in this process."""
    for cell, label in labelled:
        cause: Exception | None = None
        if processes().share(cell.state != "finished"):
            try:
                cell = _run(folder, cell, label, watch, accept_changes)
            except Exception as raised:
                if processes().count > 1:
                    raise  # nobody knows where the other processes stand
                cause = raised
        ended(cell, cause)


def _side_by_side(
    folder: AblationFolder, labelled: Sequence[tuple[Cell, str]], workers: Workers, ended: Ended
) -> None:
    """Bring cells to their ends in processes of their own."""
    tasks = []
    for cell, label in labelled:
        if cell.state == "finished":
            ended(cell, None)
            continue
        try:
            tasks.append(Task(cell=cell, label=label, stages=frozenset(cell.stage_folders(folder.root))))
        except Exception as cause:
            ended(cell, cause)
    workers.run(tasks, ended)


def _changed(folder: AblationFolder) -> dict[str, list[str]]:
    """Return what has changed since cells ran, by their names."""
    found = {cell.name: _changes(cell) for cell in folder.cells()}
    return {name: changes for name, changes in found.items() if changes}


def _changes(cell: Cell) -> list[str]:
    """Return what has changed since a cell ran, or why that cannot be told."""
    try:
        return cell.changes()
    except EvidError as cause:
        # one that has to go on will fail with the same words, and leave the others
        return [f"cannot be told: {cause}"] if cell.state == "finished" else []


def _run(folder: AblationFolder, cell: Cell, label: str, watch: Watch, accept_changes: bool) -> Cell:
    """Bring one cell to its end."""
    at = cell.run or start(cell.recipe, folder.root)
    if not processes().is_first:
        run(at, accept_changes=accept_changes)
        return dataclasses.replace(cell, run=at)
    folder.record(cell, at, cell.seconds)
    began_s = time.monotonic()
    try:
        with watch(at, label) as recorder:
            run(at, [recorder], accept_changes=accept_changes)
        write_pages(at.path)
    finally:
        folder.record(cell, at, cell.seconds + time.monotonic() - began_s)
    return dataclasses.replace(cell, run=at)


def _failure(cell: Cell, cause: Exception) -> Failure:
    if isinstance(cause, EvidError):
        return Failure(cell=cell.name, message=str(cause))
    return Failure(cell=cell.name, message=repr(cause), trace="".join(traceback.format_exception(cause)))
