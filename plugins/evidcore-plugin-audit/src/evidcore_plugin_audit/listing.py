"""The runs under a folder, newest first, each with its state and its last headlines."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from evidcore.errors import RunError
from evidcore.runs.read import RunRecord, read_head


@dataclasses.dataclass(frozen=True, kw_only=True)
class Listed:
    """A run as the list shows it."""

    folder: Path
    recipe: str
    seed: int | None
    state: str  # "finished", "running", "failed", "interrupted", "gone", "unreadable"
    stage: str  # where it stands
    step: int
    time: str  # of that state, in UTC
    headlines: tuple[Mapping[str, Any], ...]  # of the last evaluation: name, metric, value, low, high, unit
    message: str = ""


def listed(root: Path) -> list[Listed]:
    """Return the runs of a folder of runs, of one recipe or of all, newest first.

    Raises:
        RunError: if it holds none.
    """
    folders = {path.parent for depth in ("*", "*/*") for path in root.glob(f"{depth}/lock.toml")}
    if not folders:
        raise RunError(f"{root}: holds no run. Give a folder into which `evid run` wrote, as runs.")
    return sorted(map(_listed, folders), key=lambda item: (item.time, item.folder.name), reverse=True)


def _listed(folder: Path) -> Listed:
    try:
        head = read_head(folder)
    except RunError as cause:  # another run's fault is no reason to show none
        return Listed(
            folder=folder, recipe=folder.parent.name, seed=None, state="unreadable", stage="", step=0,
            time="", headlines=(), message=cause.args[0],
        )  # fmt: skip
    return Listed(
        folder=folder,
        recipe=head.name,
        seed=head.recipe.get("seed"),
        state=str(head.status.get("state", "unknown")),
        stage=str(head.status.get("stage", "")),
        step=int(head.status.get("step", 0)),
        time=str(head.status.get("time", "")),
        headlines=tuple(_headlines(head)),
        message=str(head.status.get("message", "")),
    )


def _headlines(head: RunRecord) -> Iterator[Mapping[str, Any]]:
    """Yield the first headline of each task of the last evaluation that has any."""
    for result in reversed(head.results):
        rows = [row for row in result.get("rows") or () if row.get("headline")]
        if result.get("kind") == "evaluate" and rows:
            first: dict[str, Mapping[str, Any]] = {}
            for row in rows:
                first.setdefault(row["name"], row)
            keys = ("name", "metric", "value", "low", "high", "unit")
            yield from ({key: row.get(key) for key in keys} for row in first.values())
            return
