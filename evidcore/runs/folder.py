"""The run folder `runs/<recipe>/<time>-<hash>/`: where everything lies, STATUS, who may write, and its lines.

Results of stages lie in `runs/<recipe>/stages/<hash>/`, which all runs of a recipe share; a run links to
those it uses. A stage in progress writes into `working/` of its run and is moved at its end, so a stage
folder is whole. What a stage announces becomes lines of metrics.jsonl and of its rollouts.
"""

import contextlib
import dataclasses
import datetime
import hashlib
import json
import math
import os
import pickle
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from evidcore.cache import appearing
from evidcore.data import file_hash
from evidcore.errors import EvidError, RunError, did_you_mean, is_disk_full
from evidcore.hooks import Announcer, observe
from evidcore.runs.read import lines, read_object, read_tables, refuse_strange

State = Literal["running", "finished", "failed", "interrupted"]


@dataclasses.dataclass(frozen=True)
class RunFolder:
    """Paths of one run."""

    path: Path

    @property
    def store(self) -> Path:
        """Return where finished stages of all runs of the recipe lie."""
        return self.path.parent / "stages"

    def working(self, stage: str) -> Path:
        """Return where a stage in progress writes."""
        return self.path / "working" / stage

    def status(self) -> dict[str, Any]:
        """Return STATUS, empty where there is none yet."""
        return read_object(self.path / "STATUS")

    def set_status(self, state: State, *, stage: str = "", step: int = 0, message: str = "") -> None:
        """Write STATUS."""
        time = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        result = {"state": state, "stage": stage, "step": step, "message": message, "time": time}
        write_object(self.path / "STATUS", {**result, "pid": os.getpid()})

    def lock(self) -> dict[str, Any]:
        """Return lock.toml."""
        return read_tables(self.path / "lock.toml")

    def recipe(self) -> dict[str, Any]:
        """Return the tables of resolved.toml."""
        return read_tables(self.path / "resolved.toml")

    def result(self, stage: str) -> dict[str, Any]:
        """Return what a stage found, empty where it has not finished."""
        return read_object(self.path / "results" / f"{stage}.json")

    def last_checkpoint(self) -> Path | None:
        """Return the newest thing that a resume would start from."""
        result = [
            *self.path.glob("working/*/checkpoint/steps/checkpoint-*/complete"),
            *self.path.glob("checkpoints/*"),
        ]
        newest = max(result, key=lambda item: item.stat().st_mtime, default=None)
        return newest.parent if newest is not None and newest.name == "complete" else newest

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """Keep other processes from running this folder."""
        pid = self.status().get("pid", "unknown")
        busy = f"another process (pid {pid}) is running this folder. Wait for it, or start a run of its own"
        return file_lock(self.path, f"{busy} with `evid run`.")


def create(recipe_name: str, content: str, root: Path) -> RunFolder:
    """Make the folder of a new run; `content` is what its hash covers."""
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    digest = hashlib.blake2b(content.encode(), digest_size=4).hexdigest()
    for attempt in range(100):
        path = root / recipe_name / f"{now}-{digest}{f'-{attempt}' if attempt else ''}"
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue  # another run of the same recipe in the same second
        for name in ("rollouts", "checkpoints", "results", "answers"):
            (path / name).mkdir()
        return RunFolder(path)
    raise RunError(f"{root / recipe_name}: 100 runs started within this second. Try again.")


def open_run(path: Path) -> RunFolder:
    """Return the run in `path`."""
    if (path / "lock.toml").is_file() and (path / "resolved.toml").is_file():
        refuse_strange(path)
        return RunFolder(path.resolve())
    beside = sorted(item.parent for item in path.parent.glob("*/lock.toml")) if path.parent.is_dir() else []
    hint = did_you_mean(path.name, [item.name for item in beside])
    inner = sorted(item.parent for item in path.glob("*/lock.toml")) if path.is_dir() else []
    if not hint and (inner or beside):
        hint = f" The newest there: {(inner or beside)[-1]}."
    why = f"not a run folder (lock.toml and resolved.toml are missing).{hint}"
    raise RunError(f"{path}: {why} Give what `evid run` printed, runs/<recipe>/<time>-<hash>.")


@contextlib.contextmanager
def file_lock(path: Path, busy: str) -> Iterator[None]:
    """Keep other processes out of a folder."""
    from filelock import FileLock, Timeout

    try:
        lock = FileLock(path / ".lock", timeout=0).acquire()
    except Timeout as cause:
        raise RunError(f"{path}: {busy}") from cause
    with lock:
        yield


@contextlib.contextmanager
def atomic_directory(target: Path) -> Iterator[Path]:
    """Give a folder to write into, which becomes `target` in one move at the end, or nothing at all."""
    result = sorted(item.name for item in target.iterdir()) if target.is_dir() else []
    if result or target.is_file():
        what = f"the folder is not empty ({result[0]!r} is in it)" if result else "is a file"
        raise RunError(f"{target}: {what}, and nothing is overwritten. Name another folder, or remove it.")
    target.parent.mkdir(parents=True, exist_ok=True)
    with appearing(target) as partial:
        partial.mkdir()
        yield partial


def write(path: Path, text: str) -> None:
    """Write a small file in one move; other processes and threads may write it too, the last one stays."""
    with appearing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_object(path: Path, value: Mapping[str, Any]) -> None:
    """Write an object of JSON, as `write` does; what is no number becomes null, as in lines."""
    write(path, json.dumps(_finite(value), indent=1) + "\n")


def sha256(path: Path) -> str:
    """Return the hash that `sha256sum` prints of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def folder_hash(folder: Path, counts: Callable[[str], bool] = bool) -> str:
    """Return a hash of the files in a folder whose names in it count: of all, if nothing else is said."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    names = {path.relative_to(folder).as_posix(): path for path in files}
    listed = [(name, file_hash(path)) for name, path in names.items() if counts(name)]
    return hashlib.sha256(json.dumps(listed).encode()).hexdigest()


def link(target: Path, place: Path) -> None:
    """Make `place` show `target`, by a relative link where the file system has links, else by a copy."""
    if place.is_symlink() or place.is_file():
        place.unlink()
    elif place.is_dir():
        shutil.rmtree(place)
    try:
        place.symlink_to(os.path.relpath(target, place.parent), target_is_directory=target.is_dir())
    except OSError as cause:
        if is_disk_full(cause):
            raise
        (shutil.copytree if target.is_dir() else shutil.copy2)(target, place)


@contextlib.contextmanager
def naming_remedy(folder: RunFolder) -> Iterator[None]:
    """Turn what libraries say of a full disk, or of a pickle in a checkpoint, into an error with a remedy."""
    try:
        yield
    except Exception as cause:
        if is_disk_full(cause) and not isinstance(cause, EvidError):
            named = getattr(cause, "filename", None) or folder.path
            what = f"{named}: the disk is full. What was finished is kept. Free space"
        elif isinstance(cause, pickle.UnpicklingError):  # torch reads tensors and numbers alone
            what = f"{folder.path / 'working'}: a checkpoint holds more than tensors. Delete this folder"
        else:
            raise
        raise RunError(f"{what}, then `evid resume {folder.path}`.") from cause


def difference(before: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return each value that differs between two tables, as `name: before -> now`."""
    result = []
    for key in sorted({*before, *now}):
        old, new = before.get(key), now.get(key)
        name = f"{prefix}{key}"
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            result += difference(old, new, f"{name}.")
        elif (
            isinstance(old, list) and isinstance(new, list) and all(isinstance(x, Mapping) for x in old + new)
        ):
            was, became = ({f"{key}[{index}]": item for index, item in enumerate(it)} for it in (old, new))
            result += difference(was, became, prefix)
        elif old != new:
            values = ["missing" if value is None else str(value) for value in (old, new)]
            result.append(f"{name}: {' -> '.join(values)}")
    return result


class Recorder:
    """Appends and flushes. A step that is announced again after a resume replaces what was written of it."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        computed = [line for line in read_lines(folder.path / "metrics.jsonl") if not line.get("reused")]
        so_far_s = max((line.get("time_s", 0.0) for line in computed), default=0.0)  # of the processes before
        self._start_s = time.monotonic() - so_far_s
        self._known: set[str] = set()

    @observe
    def step_finished(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        """Write a line of metrics.jsonl."""
        self._cut_once(stage, step)
        line = {"stage": stage, "step": step, "time_s": round(time.monotonic() - self._start_s, 3), **metrics}
        append(self._folder.path / "metrics.jsonl", [line])
        self._folder.set_status("running", stage=stage, step=step)

    @observe
    def rollouts_judged(self, stage: str, step: int, groups: Sequence[Mapping[str, Any]]) -> None:
        """Write a line for each group."""
        self._cut_once(stage, step)
        append(self._rollouts(stage), [{**group, "stage": stage, "step": step} for group in groups])

    def _rollouts(self, stage: str) -> Path:
        return self._folder.path / "rollouts" / f"{stage}.jsonl"

    def _cut_once(self, stage: str, step: int) -> None:
        """On a stage's first event, drop what a killed process had written from this step on."""
        if stage in self._known:
            return
        self._known.add(stage)
        for path in (self._folder.path / "metrics.jsonl", self._rollouts(stage)):
            rewrite(path, lambda line: line if line["stage"] != stage or line["step"] < step else None)


class StageEvents:
    """The announcer, bound to one stage: what a stage function is told to call."""

    def __init__(self, announcer: Announcer, stage: str) -> None:
        self._announcer, self._stage = announcer, stage

    def step_finished(self, step: int, metrics: Mapping[str, float]) -> None:
        """Announce the figures of a step."""
        self._announcer.step_finished(self._stage, step, metrics)

    def rollouts_judged(self, step: int, groups: Sequence[Mapping[str, Any]]) -> None:
        """Announce the judged groups of a step."""
        self._announcer.rollouts_judged(self._stage, step, groups)


def append(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    """Append lines of JSON and flush them; half a character of UTF-16 is written as JSON escapes it."""
    with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
        for line in lines:
            file.write(json.dumps(_finite(line), ensure_ascii=False) + "\n")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the whole lines of a JSON lines file; a last line that a kill cut short is left out."""
    return [*lines(path)]


def rewrite(path: Path, change: Callable[[dict[str, Any]], Mapping[str, Any] | None]) -> None:
    """Change or drop (None) each line of a file, which may not exist."""
    if not path.exists():
        return
    rest = [line for line in map(change, read_lines(path)) if line is not None]
    with appearing(path) as partial:
        append(partial, rest)


def _finite(value: Any) -> Any:
    """Return a value that JSON can hold: what is not a number becomes null, never 0."""
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
