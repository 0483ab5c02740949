"""A recipe and a lock as they may leave the machine: no path, no column, no list of cases.

Of a data set's table only the component, numbers, switches and values out of a fixed choice are kept; any
other text may name a folder, a hospital or a patient. Elsewhere a text is withheld where it is a local path.
"""

import os
import typing
from collections.abc import Mapping
from pathlib import Path, PureWindowsPath
from typing import Any

from evidcore.api import find
from evidcore.recipe import Recipe, to_toml
from evidcore.recipe.resolve import toml_key, toml_tables, toml_value
from evidcore.registry import parse_toml
from evidcore.registry.factory import options

WITHHELD = "(withheld)"


def published_recipe(recipe: Recipe) -> str:
    """Return a recipe as TOML with every default, without what is private or where a value came from."""
    table = {**parse_toml(to_toml(recipe)), "recipe_folder": ".", "fitted": ""}
    table["dataset"] = {name: _dataset(row, "dataset") for name, row in recipe.datasets.items()}
    if table["model"]["language"].get("folder"):
        table["model"]["language"]["folder"] = WITHHELD
    table = without_paths(table, recipe.folder)
    stages = "".join(
        "\n[[stage]]\n" + "".join(f"{toml_key(key)} = {toml_value(value)}\n" for key, value in stage.items())
        for stage in table.pop("stage")
    )
    return toml_tables(table) + stages


def published_lock(lock: Mapping[str, Any]) -> dict[str, Any]:
    """Return a lock without where the recipe lay and what was typed beside it."""
    kept = {key: lock[key] for key in ("package", "dataset", "versions", "hardware") if key in lock}
    return {"recipe": {"hash": lock["recipe"]["hash"]}, **kept}


def _dataset(table: Mapping[str, Any], kind: str) -> dict[str, Any]:
    known = options(find(kind, table["use"]).load(), kind)
    return {"use": table["use"]} | {
        key: _kept(value, known[key].type, known[key].kind) for key, value in table.items() if key in known
    }


def _kept(value: Any, annotation: Any, kind: str | None) -> Any:
    """Return an option's value where it can tell nothing, else the word that it is withheld."""
    if isinstance(value, Mapping) and kind is not None and "use" in value:
        return _dataset(value, kind)
    if isinstance(value, bool | int | float) or _is_choice(annotation):
        return value
    return WITHHELD if value not in ("", None) and value != [] and value != {} and value != () else value


def _is_choice(annotation: Any) -> bool:
    """Tell whether a type allows nothing but a fixed choice (or None)."""
    if typing.get_origin(annotation) is typing.Annotated:
        return _is_choice(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) is typing.Literal:
        return True
    parts = typing.get_args(annotation)
    return bool(parts) and all(part is type(None) or _is_choice(part) for part in parts)


def without_paths(value: Any, folder: Path) -> Any:
    """Return a value of a recipe with each local path withheld; relative ones name what lies in `folder`."""
    if isinstance(value, Mapping):
        return {key: without_paths(item, folder) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(without_paths(item, folder) for item in value)
    if not isinstance(value, str):
        return value
    starts = value.startswith(("~", "./", "../", "file:"))
    is_path = starts or Path(value).is_absolute() or PureWindowsPath(value).is_absolute()
    is_below = ("/" in value or "." in value) and os.path.exists(folder / value)  # ids on the Hub have both
    return WITHHELD if is_path or is_below else value
