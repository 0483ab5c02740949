"""A finished run opened again: its recipe and data, and the model as a stage left it."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from evidcore_plugin_audit.stage_order import stages_before
from evidcore_plugin_pages.record import is_phantom

from evidcore.compute.processes import pin_threads
from evidcore.errors import RunError
from evidcore.recipe import Recipe, load
from evidcore.runs.assembly import Assembly
from evidcore.runs.context import Context
from evidcore.runs.execute import outputs_of
from evidcore.runs.folder import RunFolder, open_run
from evidcore.runs.read import lines


@dataclasses.dataclass(frozen=True)
class OpenedRun:
    """A run and what its recipe names."""

    folder: RunFolder
    recipe: Recipe
    assembly: Assembly

    def stage(self, kind: str, *, last: bool = False) -> str:
        """Return the name of the first, or last, stage of a kind in the recipe's line.

        Raises:
            RunError: if there is none.
        """
        names = [self.recipe.stage_name(at) for at, one in self.recipe.line.items() if one.kind == kind]
        if not names:
            raise RunError(f"{self.folder.path}: the recipe has no stage {kind!r}. Give a run that has one.")
        return names[-1 if last else 0]

    @property
    def trained(self) -> str:
        """Return the last stage of the recipe's line that trained the model.

        Raises:
            RunError: if none does.
        """
        names = [self.recipe.stage_name(at) for at, one in self.recipe.line.items() if one.output == "model"]
        if not names:
            raise RunError(f"{self.folder.path}: no stage trains the model. Give a run in which one does.")
        return names[-1]

    def table(self, stage: str) -> Any:
        """Return a stage as the recipe has it."""
        return self.recipe.stages[self.recipe.stage_names.index(stage)]

    def context(self, stage: str, *, after: bool = False) -> Context:
        """Return what the run gave a stage; `after`: with the model that the stage left."""
        place = self.recipe.stage_names.index(stage)
        above = stages_before(self.recipe, place) | ({place: self.recipe.stages[place]} if after else {})
        before = outputs_of(self.folder, self.recipe, above)
        before.load_services(self.assembly)
        return Context(self.assembly, stage, before=before)

    def answers(self, stage: str) -> Iterator[Mapping[str, Any]]:
        """Yield the lines of a stage's answers."""
        return lines(self.folder.path / "answers" / f"{stage}.jsonl")

    def groups(self, stage: str) -> Sequence[Mapping[str, Any]]:
        """Return the groups of rollouts of a stage.

        Raises:
            RunError: if it has none.
        """
        path = self.folder.path / "rollouts" / f"{stage}.jsonl"
        found = list(lines(path))
        if not found:
            raise RunError(f"{path}: holds no group. Give a run whose stage {stage} has finished a step.")
        return found

    def first_of_most(
        self, stage: str, case_id: str, count: Callable[[Mapping[str, Any]], Any]
    ) -> Mapping[str, Any]:
        """Return the first of the groups with most of something: of a case, where one is named.

        Raises:
            RunError: if no group is about the case.
        """
        some = [one for one in self.groups(stage) if case_id in ("", one["case_id"])]
        if not some:
            raise RunError(f"{self.folder.path}: no group of {stage} is about case {case_id!r}.")
        return max(some, key=count)  # the first of equal ones

    def told(self, *words: str) -> str:
        """Return the line under a figure's title: the run, its seed, what is shown, and whose data it is."""
        whose = data_of(self.recipe)
        return ", ".join([f"run {self.folder.path.name}", f"seed {self.recipe.seed}", *words, whose])


def opened(folder: Path, overrides: Sequence[str] = ()) -> OpenedRun:
    """Open a run; `overrides` change what its recipe says of data."""
    run = open_run(folder)
    recipe = load(run.path / "resolved.toml", overrides)
    pin_threads(recipe.threads)
    return OpenedRun(run, recipe, Assembly(recipe))


def data_of(recipe: Recipe) -> str:
    """Return where a recipe's data comes from; "phantom data" where all of it is generated."""
    uses = list(dict.fromkeys(str(table["use"]) for table in recipe.datasets.values()))
    return f"{'phantom data: ' if all(map(is_phantom, uses)) else ''}{', '.join(uses)}"
