"""A run folder as it lies on disk, read for the page; nothing in it is imported or executed."""

import dataclasses
import json
import logging
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from evidcore.compute.signals import is_locked
from evidcore.errors import RunError

Line = Mapping[str, Any]
log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunRecord:
    """What a run wrote; pieces that do not exist yet are empty."""

    folder: Path
    recipe: Mapping[str, Any]
    lock: Mapping[str, Any]
    status: Mapping[str, Any]
    metrics: Sequence[Line]
    results: Sequence[Line]  # in stage order
    answers: Sequence[Line]
    rollout_files: Sequence[Path]  # in stage order

    @property
    def name(self) -> str:
        """Return the recipe's name, the run folder's name where the recipe is missing."""
        return str(self.recipe.get("name", self.folder.name))

    def phantom_datasets(self) -> tuple[str, ...]:
        """Return the names of the data sets that hold generated phantoms."""
        return tuple(
            name
            for name, table in self.recipe.get("dataset", {}).items()
            if is_phantom(str(table.get("use", "")))
        )

    def real_datasets(self) -> tuple[str, ...]:
        """Return the names of the data sets that hold anything else."""
        phantoms = self.phantom_datasets()
        return tuple(name for name in self.recipe.get("dataset", {}) if name not in phantoms)


def is_phantom(component: str) -> bool:
    """Tell whether a data set component generates phantoms; their names say so."""
    return component.rpartition("/")[2].startswith("phantom-")


def read_record(folder: Path) -> RunRecord:
    """Read the run in `folder`."""
    return dataclasses.replace(
        read_head(folder),
        metrics=list(lines(folder / "metrics.jsonl")),
        answers=[
            {"stage": path.stem, **line}
            for path in sorted((folder / "answers").glob("*.jsonl"))
            for line in lines(path)
        ],
    )


def read_head(folder: Path) -> RunRecord:
    """Read the run in `folder` without the lines of its metrics and answers, as `read_record`."""
    if not (folder / "resolved.toml").is_file() and not (folder / "recipe.toml").is_file():
        raise RunError(
            f"{folder}: not a run folder, neither resolved.toml nor recipe.toml is in it. "
            "Give the folder that `evid run` printed, runs/<recipe>/<time>-<hash>."
        )
    refuse_moved(folder)
    return RunRecord(
        folder=folder,
        recipe=_toml(folder / "resolved.toml") or _toml(folder / "recipe.toml"),
        lock=_toml(folder / "lock.toml"),
        status=read_status(folder),
        metrics=(),
        results=[read_object(path) for path in sorted((folder / "results").glob("*.json"))],
        answers=(),
        rollout_files=sorted((folder / "rollouts").glob("*.jsonl")),
    )


def refuse_moved(folder: Path) -> None:
    """Refuse a run that was taken away from the stages that it links to."""
    links = [path for name in ("checkpoints", "rollouts", "answers") for path in (folder / name).glob("*")]
    astray = sorted(path for path in links if not path.exists())
    if astray:
        raise RunError(
            f"{folder}: {len(astray)} of its links lead nowhere, as {astray[0].relative_to(folder)} -> "
            f"{astray[0].readlink()}. A run needs the stages beside it, {folder.parent / 'stages'}: move "
            "them too, or `evid pack RUN` where they are. `evid resume` computes anew what is gone."
        )


def read_status(folder: Path) -> Mapping[str, Any]:
    """Return STATUS; where it says "running" and no process does, its state is "gone"."""
    status = read_object(folder / "STATUS")
    if status.get("state") != "running" or not status.get("stage") or is_locked(folder):
        return status
    reason = f"process {status.get('pid')} is gone without a word: it was killed, or a component ended it"
    log.warning("%s: %s", folder, reason)
    return {**status, "state": "gone", "message": reason}


def findings_of(line: Line) -> list[str]:
    """Return what a question is about: its finding or target, else the findings that are present."""
    if named := [line[key] for key in ("finding", "target") if isinstance(line.get(key), str)]:
        return named[:1]
    return list(map(str, present)) if isinstance(present := line.get("present"), list) else []


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield a file's whole lines; the run may still write it, and files of rollouts are too large to keep."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return  # the run is writing this line right now
            if not line.strip():
                continue
            try:
                yield json.loads(line)
            except (ValueError, RecursionError) as cause:
                raise RunError(
                    f"{path}, line {number}: not JSON, {line[:60].decode(errors='replace')!r}. "
                    "Remove the line or resume the run, then `evid page` again."
                ) from cause


def read_object(path: Path) -> Mapping[str, Any]:
    """Read a file that holds an object of JSON, empty where there is none yet."""
    if not path.is_file():
        return {}
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as cause:  # not UTF-8, too long a number, too deep
        raise RunError(f"{path}: not JSON ({cause}). Run the stage again with `evid resume`.") from cause
    if not isinstance(result, dict):
        raise RunError(f"{path}: holds a {type(result).__name__}, not an object. Run the stage again.")
    return result


def _toml(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as cause:
        raise RunError(f"{path}: not TOML ({cause}). It was written by the run; start a new one.") from cause
