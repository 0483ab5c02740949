"""Start a run, and run it or go on with it: one recipe, its parts built, its stages gone through."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers.utils import logging

from evidcore.compute.processes import pin_threads, processes
from evidcore.errors import EvidError, RunError
from evidcore.hooks import Announcer
from evidcore.recipe import Recipe, load, to_toml
from evidcore.recipe.resolve import toml_tables
from evidcore.registry import blame
from evidcore.registry.factory import offer_of
from evidcore.run.assembly import Assembly, check_splits
from evidcore.run.context import Context
from evidcore.run.controls import check_controls
from evidcore.run.execute import Execution
from evidcore.run.folder import RunFolder, State, create, difference, naming_full_disk, write
from evidcore.run.inputs import unfitted_readers
from evidcore.run.lock import lock_table
from evidcore.run.record import Recorder

_DECIDES = ("package", "dataset", "versions")  # tables of the lock that may change a number


def start(
    recipe: Recipe,
    root: Path,
    *,
    fresh: bool = False,
    with_controls: bool = False,
    assembly: Assembly | None = None,
) -> RunFolder:
    """Make the run folder of a recipe: as given, resolved, and locked; `assembly` is built if left out."""
    if with_controls:
        check_controls(recipe)
    folder = (
        _start(assembly or Assembly(recipe), root, fresh, with_controls) if processes().is_first else None
    )
    path = processes().share(None if folder is None else str(folder.path))
    return RunFolder(Path(str(path)))


def _start(assembly: Assembly, root: Path, fresh: bool, with_controls: bool) -> RunFolder:
    recipe = assembly.recipe
    pin_threads(recipe.threads)
    lock = lock_table(recipe, assembly.datasets)
    resolved = to_toml(recipe)
    folder = create(recipe.name, resolved + json.dumps(lock, sort_keys=True), root)
    lock["run"] = {"fresh": fresh, "with_controls": with_controls}
    write(folder.path / "recipe.toml", recipe.text)
    write(folder.path / "resolved.toml", resolved)
    write(folder.path / "lock.toml", toml_tables(lock))
    folder.set_status("running", message="starting")
    return folder


def run(
    folder: RunFolder,
    recorders: Sequence[object] = (),
    *,
    accept_changes: bool = False,
    assembly: Assembly | None = None,
) -> None:
    """Run or go on with what a run folder holds, to its end.

    Args:
        folder: the run.
        recorders: hear the run's events.
        accept_changes: go on although code, data or versions changed.
        assembly: of the folder's recipe, where it was built to start the run.

    Raises:
        RunError: if code, data or versions changed since the run started, if another process runs it, or if
            the disk is full.
        EvidError: whatever a person can fix in recipe, data or components.
    """
    is_first = processes().is_first
    with folder.held() if is_first else contextlib.nullcontext(), naming_full_disk(folder):
        assembly = assembly or Assembly(load(folder.path / "resolved.toml"))
        recipe = assembly.recipe
        pin_threads(recipe.threads)
        lock = lock_table(recipe, assembly.datasets)
        if is_first:
            refuse_changes(folder, lock, accept=accept_changes)
        processes().wait()
        logging.disable_progress_bar()  # the run has its own
        own = [Recorder(folder), *recorders] if is_first else []
        announcer = Announcer.from_names(own, recipe.observers if is_first else ())
        try:
            check_splits(assembly)
            for index, stage in enumerate(recipe.stages):
                context = Context(assembly, recipe.stage_name(index))
                stage.check(context)
                stage.ready(context)
            for _, name, reader in unfitted_readers(assembly):
                with blame(offer_of(reader), f"looking for what service.{name} needs"):
                    reader.ready()
            Execution(folder, assembly, {**lock, "run": folder.lock()["run"]}, announcer).all()
        except KeyboardInterrupt:
            _stopped(folder, "interrupted", "")
            raise
        except Exception as cause:
            _stopped(folder, "failed", str(cause) if isinstance(cause, EvidError) else repr(cause))
            raise
        if is_first:
            off = "; ".join(f"{name} ({why})" for name, why in announcer.failed.items())
            folder.set_status("finished", message=f"observers switched off: {off}" if off else "")


def _stopped(folder: RunFolder, state: State, message: str) -> None:
    """Keep in STATUS where a run stopped."""
    if processes().is_first:
        status = folder.status()
        folder.set_status(state, stage=status.get("stage", ""), step=status.get("step", 0), message=message)


def changes_since(folder: RunFolder, lock: dict[str, Any]) -> list[str]:
    """Return what of code, data and versions has changed since a run started, given the lock of today."""
    before = folder.lock()
    return [
        line for name in _DECIDES for line in difference(before.get(name, {}), lock.get(name, {}), f"{name}.")
    ]


def refuse_changes(folder: RunFolder, lock: dict[str, Any], *, accept: bool = False) -> None:
    """Stop where code, data or versions changed since a run started, or keep what is accepted.

    Raises:
        RunError: what changed, and how to accept it.
    """
    before, changes = folder.lock(), changes_since(folder, lock)
    if not changes:
        return
    if not accept:
        listing = "\n".join(f"  {line}" for line in changes)
        raise RunError(
            f"{folder.path}: changed since it started, so it would not go on as the same run\n{listing}\n"
            f"  To go on all the same: evid resume {folder.path} --accept-changes"
        )
    accepted = [*before["run"].get("accepted", []), *changes]
    write(folder.path / "lock.toml", toml_tables({**lock, "run": {**before["run"], "accepted": accepted}}))
