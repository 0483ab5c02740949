"""Start a run, and run it or go on with it: one recipe, its parts built, its stages gone through."""

import contextlib
import json
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from transformers.utils import logging

from evidcore.compute.processes import pin_threads, processes
from evidcore.compute.signals import stop_request
from evidcore.errors import EvidError, RunError, Stopped
from evidcore.hooks import Announcer
from evidcore.model.parts import refuse_4bit
from evidcore.recipe import Recipe, load, to_toml
from evidcore.recipe.load import read_toml
from evidcore.recipe.resolve import toml_tables
from evidcore.registry import LOCK, blame, package_error
from evidcore.registry.factory import offer_of
from evidcore.runs.assembly import Assembly, check_splits
from evidcore.runs.context import Context
from evidcore.runs.execute import Execution, isolation_ended
from evidcore.runs.folder import Recorder, RunFolder, create, difference, naming_remedy, write
from evidcore.runs.inputs import drift, lock_table, refuse_drift, unfitted_readers

_DECIDES = ("package", "dataset", "versions")  # tables of the lock that may change a number


def start(
    recipe: Recipe,
    root: Path,
    *,
    fresh: bool = False,
    assembly: Assembly | None = None,
    locked: Path | None = None,
) -> RunFolder:
    """Make the run folder of a recipe: as given, resolved, and locked.

    A `fresh` run uses no earlier result. Code, data and versions must equal the lock `locked`, if one is
    given.
    """
    path = ""
    if processes().is_first:
        assembly = assembly or Assembly(recipe)
        pin_threads(recipe.threads)
        lock, resolved = lock_table(recipe, assembly.datasets), to_toml(recipe)
        if locked is not None:
            refuse_drift(locked, drift(read_toml(locked)[1], lock))
        folder = create(recipe.name, resolved + json.dumps(lock, sort_keys=True), root)
        lock["run"] = {"fresh": fresh}
        write(folder.path / "recipe.toml", recipe.text)
        write(folder.path / "resolved.toml", resolved)
        write(folder.path / "lock.toml", toml_tables(lock))
        if lock["plugin"]:
            write(folder.path / LOCK, toml_tables({"plugin": lock["plugin"]}))
        folder.set_status("running", message="starting")
        path = str(folder.path)
    return RunFolder(Path(processes().share(path)))


def run(
    folder: RunFolder,
    recorders: Sequence[object] = (),
    *,
    accept_changes: bool = False,
    assembly: Assembly | None = None,
) -> None:
    """Run or go on with what a run folder holds, to its end.

    Raises:
        RunError: if code, data or versions changed since the run started, if another process runs it, or if
            the disk is full.
        EvidError: whatever a person can fix in recipe, data or components.
    """
    is_first = processes().is_first
    with folder.locked() if is_first else contextlib.nullcontext(), stop_request.installed():
        assembly = assembly or Assembly(load(folder.path / "resolved.toml"))
        recipe = assembly.recipe
        pin_threads(recipe.threads)
        lock = lock_table(recipe, assembly.datasets)
        if is_first:
            refuse_changes(folder, lock, accept=accept_changes)
        processes().wait()
        logging.disable_progress_bar()  # the run has its own
        writers = [Recorder(folder), *recorders] if is_first else []
        announcer = Announcer.from_names(writers, recipe.observers if is_first else ())
        with recording_exit(folder), isolation_ended():
            check_splits(assembly)
            refuse_4bit(recipe.model)
            for index, stage in enumerate(recipe.stages):
                stage.check(Context(assembly, recipe.stage_name(index)))
            for _, name, reader in unfitted_readers(assembly):
                with blame(offer_of(reader), f"looking for what service.{name} needs"):
                    reader.ready()
            Execution(folder, assembly, {**lock, "run": folder.lock()["run"]}, announcer).all()
        if is_first:
            off = "; ".join(f"{name} ({why.partition(':')[0]})" for name, why in announcer.failed.items())
            folder.set_status("finished", message=f"observers switched off: {off}" if off else "")


@contextlib.contextmanager
def recording_exit(folder: RunFolder) -> Iterator[None]:
    """Keep in STATUS where a run stopped, and why; nobody's words but our own."""
    is_first = processes().is_first
    try:
        with naming_remedy(folder):
            yield
    except BaseException as cause:
        error = package_error(cause) or cause
        if is_first and not isinstance(error, Exception | Stopped):
            what = f"something ended the process with {type(cause).__name__}."
            error = RunError(what, f" It said: {cause}")
        if isinstance(error, EvidError | Stopped):
            why = error.safe if isinstance(error, EvidError) else str(error)  # the rest may quote a patient
        else:
            last = traceback.extract_tb(error.__traceback__)[-1]
            why = f"{type(error).__name__} in {last.filename}, line {last.lineno}; the terminal had its text"
        if is_first:
            at = {key: value for key, value in folder.status().items() if key in ("stage", "step")}
            folder.set_status("interrupted" if isinstance(error, Stopped) else "failed", message=why, **at)
        if error is cause:
            raise
        raise error from cause


def changes_since(folder: RunFolder, lock: dict[str, Any]) -> list[str]:
    """Return what of code, data and versions has changed since a run started, given the lock of today."""
    before = folder.lock()
    return [line for name in _DECIDES for line in difference(before.get(name, {}), lock[name], f"{name}.")]


def refuse_changes(folder: RunFolder, lock: dict[str, Any], *, accept: bool = False) -> None:
    """Stop where code, data or versions changed since a run started, or keep what is accepted."""
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
