"""What a data command is pointed at: the data sets of a recipe, or a folder with a table of cases."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evidcore.api import DataError, Dataset, Task
from evidcore.cache import cache_folder
from evidcore.case import Intensity
from evidcore.data.stored import unreadable
from evidcore.errors import RecipeError, did_you_mean
from evidcore.recipe import Recipe, load
from evidcore.registry import factory
from evidcore.runs.assembly import Assembly
from evidcore_plugin_tables.csv_rows import read_rows
from evidcore_plugin_tables.folder_table import STATES, stated_by
from evidcore_plugin_tables.placing import place

TABLE, QUESTIONS = "cases.csv", "questions.csv"
_KNOWN = ("id", "volume", "image", "patient", "split", "report", "masks")
_STATED = 0.5  # of a column's filled cells that must read as a finding's state


def open_target(target: Path, only: str | None, intensity: Intensity) -> dict[str, Dataset]:
    """Build the data sets that `target` stands for, by name.

    Args:
        target: a recipe, or a folder that holds `cases.csv` or `questions.csv`.
        only: of a recipe, the data set wanted; None for all.
        intensity: of the volumes of a folder; a recipe says it itself.

    Raises:
        DataError: if `target` is neither.
        RecipeError: if the recipe cannot be used, or has no such data set.
    """
    if target.is_dir():
        return {target.resolve().name: open_folder(target, intensity)}
    if target.suffix == ".toml":
        return open_recipe(load(target), only)
    remedy = f"Give a recipe (.toml), or a folder that holds {TABLE} or {QUESTIONS}."
    if not target.exists():
        raise unreadable(target, remedy=remedy)
    raise DataError(f"{target}: neither a recipe nor a folder. {remedy}")


def open_recipe(recipe: Recipe, only: str | None) -> dict[str, Dataset]:
    """Build the data sets of a recipe, or the one that is wanted."""
    if only is not None and only not in recipe.datasets:
        why = f"has no data set {only!r}.{did_you_mean(only, recipe.datasets)}"
        raise RecipeError(f"{recipe.path}: {why} It has: {', '.join(recipe.datasets)}.")
    result = Assembly(recipe).datasets
    return result if only is None else {only: result[only]}


def open_tasks(target: Path) -> dict[str, Task]:
    """Build the tasks of a recipe, by name."""
    return Assembly(load(target)).tasks


def open_folder(folder: Path, intensity: Intensity) -> Dataset:
    """Build the data set of a folder, `folder` or `table`, its options read from its table's columns."""
    if (folder / QUESTIONS).is_file() and not (folder / TABLE).exists():
        placed, (rows, _) = place(folder / QUESTIONS, folder, {}), read_rows(folder / QUESTIONS, ())
        findings = [name for name in placed.unused if states([row for _, row in rows], name)]
        options = {"use": "table", **placed.options, "findings": findings}
    else:
        options = {"use": "folder", **folder_options(folder / TABLE)}
    table = {"path": ".", "intensity": intensity, **options}
    given = {"recipe_folder": folder.resolve(), "cache_folder": cache_folder()}
    dataset: Dataset = factory.build("dataset", table, given=given, where=str(folder))
    return dataset


def folder_options(table: Path) -> dict[str, Any]:
    """Read from a table's columns what a recipe would say of them.

    Findings are the columns without another meaning in which most filled cells are 1, 0, -1, present, absent
    or uncertain.

    Raises:
        DataError: if there is no such table, it is no CSV file, or a column stands twice.
    """
    if not table.is_file():
        remedy = "Write one with the columns id, volume, patient, split (docs/start/own_scans.md)"
        others = f"or {QUESTIONS} (docs/howto/table.md), or give a recipe"
        raise DataError(f"{table.parent}: holds no {table.name}. {remedy}, {others}.")
    rows = [row for _, row in read_rows(table, ())[0]]
    names = list(rows[0]) if rows else []
    options: dict[str, Any] = {
        "findings": [name for name in names if not (name in _KNOWN or stated_by(name)) and states(rows, name)]
    }
    if "patient" not in names:
        options["patient_column"] = ""
    return options


def states(rows: Sequence[Mapping[str, str]], column: str) -> bool:
    """Tell whether a column reads as a finding."""
    filled = [cell for row in rows if (cell := row[column].lower())]
    return bool(filled) and sum(cell in STATES for cell in filled) > _STATED * len(filled)
