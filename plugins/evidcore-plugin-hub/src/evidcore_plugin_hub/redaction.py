"""A recipe and a lock as they may leave the machine: no path, no column, no list of cases.

Of a data set's table only the component, numbers, switches and values out of a fixed choice are kept; any
other text may name a folder, a hospital or a patient. Elsewhere a text is withheld where it is a local path.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Mapping
from pathlib import Path, PureWindowsPath
from typing import Any

from evidcore.api import find
from evidcore.recipe import Recipe, to_toml
from evidcore.registry.factory import options

WITHHELD = "(withheld)"
_ORIGIN = re.compile(r"  # (?:line \d+|default|command line|folder of the recipe)$|^# .*\n", re.MULTILINE)


def published_recipe(recipe: Recipe) -> str:
    """Return a recipe as TOML with every default, without what is private or where a value came from."""
    language = without_paths(recipe.model.language)
    if language.get("folder"):
        language = {**language, "folder": WITHHELD}
    model = dataclasses.replace(
        recipe.model,
        language=language,
        **{part: without_paths(getattr(recipe.model, part)) for part in ("encoder", "bridge", "view")},
    )
    shown = dataclasses.replace(
        recipe,
        folder=Path(),
        fitted="",
        datasets={name: _dataset(table, "dataset") for name, table in recipe.datasets.items()},
        tasks=without_paths(recipe.tasks),
        services=without_paths(recipe.services),
        model=model,
        stages=tuple(_stage(stage) for stage in recipe.stages),
    )
    return _ORIGIN.sub("", to_toml(shown))


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


def _stage(stage: Any) -> Any:
    """Return a stage none of whose keys holds a local path."""
    keys = {item.name: without_paths(getattr(stage, item.name)) for item in dataclasses.fields(stage)}
    return dataclasses.replace(stage, **keys)


def without_paths(value: Any) -> Any:
    """Return a value of a recipe with each local path in it withheld."""
    if isinstance(value, Mapping):
        return {key: without_paths(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(without_paths(item) for item in value)
    return WITHHELD if isinstance(value, str) and _is_path(value) else value


def _is_path(text: str) -> bool:
    starts = text.startswith(("~", "./", "../", "file:"))
    return starts or Path(text).is_absolute() or PureWindowsPath(text).is_absolute()
