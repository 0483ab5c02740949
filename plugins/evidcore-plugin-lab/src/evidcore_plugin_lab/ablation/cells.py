"""The folder of an ablation, and which runs are its cells.

A cell is one arm under one seed, and is an ordinary run of the recipe: it lies beside the recipe's other
runs and shares their finished stages. The ablation's own folder, `runs/<recipe>/ablations/<name>/`, holds
`cells.json`, which says which run is which cell, and the tables.
"""

import dataclasses
import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from evidcore.errors import RunError, did_you_mean
from evidcore.recipe import Recipe, to_toml
from evidcore.runs.assembly import Assembly
from evidcore.runs.begin import changes_since
from evidcore.runs.folder import RunFolder, difference, write
from evidcore.runs.inputs import INPUTS, Hashes, after, hashed_inputs, inputs_hash, lock_table
from evidcore.runs.read import read_object
from evidcore_plugin_lab.ablation.definition import Ablation

CELLS = "cells.json"
_SHOWN = 3  # changes of a cell that messages list


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """One arm under one seed."""

    arm: str
    seed: int
    recipe: Recipe
    run: RunFolder | None = None  # None: not begun
    seconds: float = 0.0  # that it has run so far, in processes that came to their end

    @property
    def name(self) -> str:
        """Return what messages and folders call it."""
        return f"{self.arm}/seed-{self.seed}"

    @property
    def state(self) -> Literal["to do", "begun", "finished"]:
        """Return how far it is; a run whose stages were deleted since has to go through them again."""
        if self.run is None:
            return "to do"
        results = (self.run.path / "results" / f"{stage}.json" for stage in self.recipe.stage_names)
        answers = (self.run.path / "answers").iterdir()  # links into the store
        is_whole = all(file.exists() for file in (*results, *answers))
        return "finished" if is_whole and self.run.status().get("state") == "finished" else "begun"

    @property
    def ran(self) -> RunFolder:
        """Return its run, which has begun."""
        assert self.run is not None
        return self.run

    def stage_folders(self, root: Path) -> list[Path]:
        """Return where its stages lie when finished; builds its components. `root` is where runs lie."""
        assembly = Assembly(self.recipe)
        inputs = planned_inputs(assembly, lock_table(self.recipe, assembly.datasets))
        return [root / self.recipe.name / "stages" / inputs_hash(own) for own in inputs.values()]

    def changes(self) -> list[str]:
        """Return what has changed since it ran: for a finished cell whatever one of its stages depends on."""
        if self.run is None:
            return []
        assembly = Assembly(self.recipe)
        lock = lock_table(self.recipe, assembly.datasets)
        if self.state != "finished":
            before = self.run.recipe()
            return difference(before, tomllib.loads(to_toml(self.recipe))) or changes_since(self.run, lock)
        for stage, inputs in planned_inputs(assembly, lock).items():
            before_hash = self.run.result(stage)["inputs"]
            if before_hash != inputs_hash(inputs):
                before = read_object(self.run.store / before_hash / INPUTS)
                now = json.loads(json.dumps(inputs, default=str))
                return [f"{stage}, {line}" for line in difference(before, now)]
        return []


def planned_inputs(assembly: Assembly, lock: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the inputs of every stage of a recipe, by stage name, without running any."""
    result: dict[str, dict[str, Any]] = {}
    stages = assembly.recipe.stages
    state: dict[str, Hashes] = {"": {}}  # by arm
    for index, stage in enumerate(stages):
        upstream = state.get(stage.arm, state[""])
        arms = {f"arm.{name}": had["model"] for name, had in state.items() if name and "model" in had}
        inputs = hashed_inputs(assembly, stage, lock, {**upstream, **arms})
        result[assembly.recipe.stage_name(index)] = inputs
        state[stage.arm] = after(stage, inputs_hash(inputs), upstream)
    return result


class AblationFolder:
    """Where an ablation's tables lie, and what says which runs they are made of."""

    def __init__(self, ablation: Ablation, root: Path) -> None:
        """Describe it; `root` is where runs lie. Nothing is written."""
        self.ablation, self.root = ablation, root
        self.path = root / ablation.recipe_name / "ablations" / ablation.name

    def cells(self) -> list[Cell]:
        """Return every cell, all arms of the first seed first."""
        known, seeds, arms = self._known(), self.ablation.seeds, self.ablation.arms
        return [self._cell(arm.name, seed, known) for seed in seeds for arm in arms]

    def chosen(self, arms: Sequence[str], seeds: Sequence[int]) -> list[Cell]:
        """Return the cells of these arms and seeds; all where none is named."""
        path, names = self.ablation.path, [arm.name for arm in self.ablation.arms]
        if unknown := [arm for arm in arms if arm not in names]:
            hint = did_you_mean(unknown[0], names)
            raise RunError(f"{path}: no arm is called {unknown[0]!r}.{hint} Arms: {', '.join(names)}.")
        if other := [seed for seed in seeds if seed not in self.ablation.seeds]:
            listed = ", ".join(map(str, self.ablation.seeds))
            raise RunError(f"{path}: {other[0]} is none of its seeds ({listed}). Add it to `seeds` there.")
        of_arms = [cell for cell in self.cells() if not arms or cell.arm in arms]
        return [cell for cell in of_arms if not seeds or cell.seed in seeds]

    def record(self, cell: Cell, run: RunFolder, seconds: float) -> None:
        """Keep which run is a cell's, and how long it has run."""
        place = os.path.relpath(run.path, self.path)
        known = {**self._known(), cell.name: {"run": place, "seconds": round(seconds, 1)}}
        write(self.path / CELLS, json.dumps(known, indent=1) + "\n")

    def refuse(self, changed: Mapping[str, Sequence[str]], command: str) -> None:
        """Refuse to count cells, or to go on with them, that would not come out the same today."""
        if not changed:
            return
        listing = []
        for name, changes in changed.items():
            more = f"; and {len(changes) - _SHOWN} more" if len(changes) > _SHOWN else ""
            listing.append(f"  {name}: {'; '.join(changes[:_SHOWN])}{more}\n")
        count = "1 cell has" if len(changed) == 1 else f"{len(changed)} cells have"
        raise RunError(
            f"{self.path}: {count} changed since they ran\n{''.join(listing)}"
            f"  To run them anew, which uses unchanged stages again: {command} --rerun\n"
            f"  To count them, or go on with them, as they began: {command} --accept-changes"
        )

    def _known(self) -> dict[str, Any]:
        return read_object(self.path / CELLS)

    def _cell(self, arm: str, seed: int, known: dict[str, Any]) -> Cell:
        cell = Cell(arm=arm, seed=seed, recipe=self.ablation.cell_recipe(arm, seed))
        if entry := known.get(cell.name):
            run = RunFolder((self.path / entry["run"]).resolve())
            if (run.path / "lock.toml").is_file():
                return dataclasses.replace(cell, run=run, seconds=entry["seconds"])
        return cell
