"""What a run is made of: data sets, tasks, services and view, built; cases and prompts as stages use them."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Collection, Mapping
from typing import Any

from evidcore.case import Case, Prompt, Split
from evidcore.contracts import Dataset, Task, View
from evidcore.errors import ContractError, DataError
from evidcore.recipe import DataUse, Recipe, data_uses
from evidcore.recipe.components import build_datasets, build_services, build_tasks
from evidcore.registry import blame, factory
from evidcore.registry.factory import offer_of
from evidcore.train.rows import PromptSet
from evidcore.volume import cache_root


@dataclasses.dataclass(frozen=True)
class Parts:
    """Everything that exists before the first stage."""

    recipe: Recipe
    datasets: Mapping[str, Dataset]
    tasks: Mapping[str, Task]
    services: Mapping[str, Any]
    view: View
    _cases: dict[tuple[str, Split], list[Case]] = dataclasses.field(default_factory=dict)

    def split(self, dataset: str, split: Split) -> list[Case]:
        """Return the cases of a split.

        Raises:
            ContractError: if a case id comes twice, or a case is none.
            DataError: if there are none.
        """
        key = (dataset, split)
        if key not in self._cases:
            source = self.datasets[dataset]
            with blame(offer_of(source), f"listing the cases of {dataset}, {split}"):
                cases = list(source.cases(split))
            seen: set[str] = set()
            for case in cases:
                if case.id in seen:
                    raise ContractError(
                        f"{offer_of(source)}: case {case.id!r} comes twice in {dataset}, {split}."
                    )
                seen.add(case.id)
            self._cases[key] = cases
        if not self._cases[key]:
            raise DataError(
                f"dataset.{dataset}: the {split} split has no cases. Check the table's options and files."
            )
        return self._cases[key]

    def cases(self, use: DataUse) -> list[Case]:
        """Return the cases that a data entry asks for."""
        cases = self.split(use.dataset, use.split)
        if use.patients < 1:
            places = {case.id: _place(case.patient or case.id, self.recipe.seed) for case in cases}
            most = max(use.patients, min(places.values()))  # at least one patient
            cases = [case for case in cases if places[case.id] <= most]
        return cases[: use.limit] if use.limit else cases

    def prompts(self, use: DataUse, *, seed: int = 0, split: Split | None = None) -> list[Prompt]:
        """Return everything that a task asks about a data entry's cases; seed 0 is evaluation's."""
        task = self.tasks[use.task]
        found: list[Prompt] = []
        for case in self.cases(use) if split is None else self.split(use.dataset, split):
            with blame(offer_of(task), f"asking about case {case.id!r}"):
                asked = task.prompts(case, self.view, seed)
            found += [dataclasses.replace(prompt, task=use.task) for prompt in asked]
        if not found:
            raise DataError(
                f"task {use.task!r} asks nothing about the {use.split} cases of {use.dataset!r}. "
                "It may need findings, questions or reports that this data set lacks."
            )
        return found

    def prompt_sets(self, data: tuple[DataUse, ...]) -> list[PromptSet]:
        """Return what a training stage draws its rows from."""
        return [
            PromptSet(
                name=use.task,
                task=self.tasks[use.task],
                view=self.view,
                cases=self.cases(use),
                share=use.share,
            )
            for use in data
        ]

    @functools.cached_property
    def findings(self) -> tuple[str, ...]:
        """Return the finding names of all data sets."""
        return tuple(dict.fromkeys(name for item in self.datasets.values() for name in item.findings))


def build(recipe: Recipe) -> Parts:
    """Build the components that need no weights."""
    given = {"recipe_folder": recipe.folder, "cache_folder": cache_root()}
    services = build_services(recipe, given)
    datasets = build_datasets(recipe, given)
    view = factory.build("view", recipe.model.view, given={}, where="model.view")
    tasks = build_tasks(recipe, {**given, "view": view}, services)
    return Parts(recipe=recipe, datasets=datasets, tasks=tasks, services=services, view=view)


def check_splits(parts: Parts, leaving_out: Collection[str] = ()) -> None:
    """Refuse a data set in which a patient is in two of the splits that the recipe uses.

    Args:
        parts: what the recipe is made of.
        leaving_out: names of data sets that are not looked at.

    Raises:
        DataError: naming the patient, a case of his in each, and the splits.
    """
    read = {(use.dataset, use.split) for stage in parts.recipe.stages for use in data_uses(stage)}
    for dataset in parts.datasets.keys() - set(leaving_out):
        where: dict[str, tuple[str, str]] = {}
        for split in sorted(split for name, split in read if name == dataset):
            for case in parts.split(dataset, split):
                patient = case.patient or case.id
                other, case_id = where.setdefault(patient, (split, case.id))
                if other != split:
                    raise DataError(
                        f"dataset.{dataset}: patient {patient!r} is in {other} (case {case_id!r}) and in "
                        f"{split} (case {case.id!r}). Move or drop one: a patient may be in one split only."
                    )


def _place(patient: str, seed: int) -> float:
    """Return a patient's place in 0..1, the same in every process."""
    digest = hashlib.blake2b(f"{seed}/{patient}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64
