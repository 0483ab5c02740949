"""What an ablation has to do: which cells are there, and how many of their stages are shared."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evidcore_plugin_lab.ablation.cells import AblationFolder, Cell


def forecast(folder: AblationFolder, cells: Sequence[Cell]) -> dict[str, Any]:
    """Return the state of each cell, and how many distinct stages the cells have and the store holds.

    Runs and writes nothing, but reads the data's tables (phantoms that are not in the cache are drawn).
    """
    told: list[dict[str, Any]] = []
    stages: list[Path] = []
    for cell in cells:
        stages += cell.stage_folders(folder.root)
        told.append({
            "arm": cell.arm, "seed": cell.seed, "state": cell.state, "changes": cell.changes(),
            "run": None if cell.run is None else str(cell.run.path),
            "overrides": list(folder.ablation.cell_overrides(cell.arm, cell.seed)),
        })  # fmt: skip
    distinct = set(stages)
    there = sum(stage.is_dir() for stage in distinct)
    return {"cells": told, "stages": len(stages), "distinct": len(distinct), "there": there}
