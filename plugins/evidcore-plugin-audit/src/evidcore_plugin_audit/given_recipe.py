"""A recipe given in Python: a file's path, the tables that a file would hold, or one that is read already."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evidcore.errors import RecipeError
from evidcore.recipe import Recipe, load
from evidcore.recipe.load import refuse
from evidcore.recipe.resolve import toml_value

Given = str | os.PathLike[str] | Mapping[str, Any] | Recipe
Overrides = Mapping[str, Any] | Sequence[str]
DICT = Path("recipe given as a dict")


def given_recipe(recipe: Given, overrides: Overrides = ()) -> Recipe:
    """Read and check a recipe.

    Args:
        recipe: a TOML file; or its tables, whose relative paths start in the working directory; or a recipe.
        overrides: `{"stage.grpo.steps": 3}`, or what `--set` takes, `["stage.grpo.steps=3"]`.

    Raises:
        RecipeError: every mistake.
        TypeError: if it is none of these.
    """
    if isinstance(overrides, str):
        raise TypeError(f"overrides: must be a mapping or a list of texts, got the text {overrides!r}.")
    if isinstance(overrides, Mapping):
        values = _plain(overrides, Path("overrides"))
        overrides = [f"{key}={toml_value(value)}" for key, value in values.items()]
    if isinstance(recipe, Recipe):
        if overrides:
            raise RecipeError(
                f"{recipe.path}: overrides change a recipe while it is read, and this one is read already. "
                "Give its path, or give them to `load`."
            )
        return recipe
    if isinstance(recipe, Mapping):
        return load(_plain(recipe, DICT), overrides)
    if isinstance(recipe, str | os.PathLike):
        return load(Path(recipe), overrides)
    raise TypeError(f"recipe: must be a path, a dict or a Recipe, got {recipe!r}.")


def _plain(tables: Mapping[str, Any], where: Path) -> dict[str, Any]:
    """Return tables of what TOML can hold: paths become texts, numbers of numpy plain ones."""
    wrong: list[tuple[int, str]] = []

    def plain(value: Any, at: str) -> Any:
        if isinstance(value, Mapping):
            result = {}
            for key, inner in value.items():
                if not isinstance(key, str) or not key:
                    wrong.append((0, f"{at or 'top level'}: a key is a text, got {key!r}."))
                    continue
                result[key] = plain(inner, f"{at}.{key}" if at else key)
            return result
        if isinstance(value, list | tuple | np.ndarray):
            return [plain(inner, f"{at}[{number}]") for number, inner in enumerate(value)]
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
        # half a surrogate pair is no text
        if isinstance(value, str) and value.encode(errors="ignore").decode() == value:
            return str(value)
        if isinstance(value, bool | int | float):
            return value
        hint = " Leave the key out for its default." if value is None else ""
        must = "must be a text, a number, true or false, a list or a table"
        wrong.append((0, f"{at}: {must}, got {value!r}.{hint}"))
        return 0

    result = plain(tables, "")
    refuse(where, wrong)
    return dict(result)
