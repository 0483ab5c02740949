"""What a run wrote, for pages and tables; nothing in it is imported or executed."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evidcore.errors import RunError
from evidcore.runs.read import lines, read_object, read_status, read_tables, refuse_moved, refuse_strange

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
        tables = self.recipe.get("dataset", {})
        return tuple(name for name, table in tables.items() if is_phantom(str(table.get("use", ""))))

    def real_datasets(self) -> tuple[str, ...]:
        """Return the names of the data sets that hold anything else."""
        phantoms = self.phantom_datasets()
        return tuple(name for name in self.recipe.get("dataset", {}) if name not in phantoms)

    def stage_table(self, stage: str) -> Mapping[str, Any]:
        """Return the recipe's table of a stage such as `05-evaluate`; empty where it has none."""
        number, tables = stage.partition("-")[0], self.recipe.get("stage", ())
        return tables[int(number) - 1] if number.isdigit() and 0 < int(number) <= len(tables) else {}


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
    refuse_strange(folder)
    refuse_moved(folder)
    return RunRecord(
        folder=folder,
        recipe=read_tables(folder / "resolved.toml") or read_tables(folder / "recipe.toml"),
        lock=read_tables(folder / "lock.toml"),
        status=read_status(folder),
        metrics=(),
        results=[read_object(path) for path in sorted((folder / "results").glob("*.json"))],
        answers=(),
        rollout_files=sorted((folder / "rollouts").glob("*.jsonl")),
    )


def findings_of(line: Line) -> list[str]:
    """Return what a question is about: its finding or target, else the findings that are present."""
    if named := [line[key] for key in ("finding", "target") if isinstance(line.get(key), str)]:
        return named[:1]
    return list(map(str, present)) if isinstance(present := line.get("present"), list) else []
