"""A run folder as it lies on disk, read for the page; nothing in it is imported or executed."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from evidcore.errors import RunError

Line = Mapping[str, Any]


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
    """Read the run in `folder`.

    Raises:
        RunError: if the folder is not a run, or a file in it cannot be read.
    """
    if not (folder / "resolved.toml").is_file() and not (folder / "recipe.toml").is_file():
        raise RunError(
            f"{folder}: not a run folder, neither resolved.toml nor recipe.toml is in it. "
            "Give the folder that `evid run` printed, runs/<recipe>/<time>-<hash>."
        )
    recipe = _toml(folder / "resolved.toml") or _toml(folder / "recipe.toml")
    return RunRecord(
        folder=folder,
        recipe=recipe,
        lock=_toml(folder / "lock.toml"),
        status=_json(folder / "STATUS"),
        metrics=list(_lines(folder / "metrics.jsonl")),
        results=[_json(path) for path in sorted((folder / "results").glob("*.json"))],
        answers=[
            {"stage": path.stem, **line}
            for path in sorted((folder / "answers").glob("*.jsonl"))
            for line in _lines(path)
        ],
        rollout_files=sorted((folder / "rollouts").glob("*.jsonl")),
    )


def groups(path: Path) -> Iterator[Line]:
    """Yield the groups of one rollout file; these files are too large to keep."""
    yield from _lines(path)


def _lines(path: Path) -> Iterator[Line]:
    if not path.is_file():
        return
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith("\n"):
                return  # the run is writing this line right now
            if not line.strip():
                continue
            try:
                yield json.loads(line)
            except json.JSONDecodeError as cause:
                raise RunError(
                    f"{path}, line {number}: not JSON, {line[:60]!r}. "
                    "Remove the line or resume the run, then `evid page` again."
                ) from cause


def _json(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as cause:
        raise RunError(f"{path}: not JSON ({cause}). Run the stage again with `evid resume`.") from cause
    if not isinstance(found, dict):
        raise RunError(f"{path}: holds a {type(found).__name__}, not an object. Run the stage again.")
    return found


def _toml(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as cause:
        raise RunError(f"{path}: not TOML ({cause}). It was written by the run; start a new one.") from cause
