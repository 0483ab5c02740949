"""Write a Recipe out as TOML with every default, and where each value came from."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import Any

from evidcore.recipe import shape

Key = tuple[str | int, ...]
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_SUBTABLES = (
    "options", "rollout", "reweighter", "rescue", "labeler", "segmenter", "lora", "trl", "replay",
)  # fmt: skip
_LISTS = ("reward", "metric", "tools")


def to_toml(recipe: shape.Recipe) -> str:
    """Return a recipe that loads to an equal Recipe; each value's comment says who gave it."""
    out = [f"# {recipe.name} with every default; behind each value, where it came from."]
    top = {
        "schema": recipe.SCHEMA, "name": recipe.name, "seed": recipe.seed,
        "recipe_folder": str(recipe.folder), "observers": list(recipe.observers),
    }  # fmt: skip
    out += _entries(recipe, (), top)
    named = {"dataset": recipe.datasets, "task": recipe.tasks, "service": recipe.services}
    for section, tables in named.items():
        for name, table in tables.items():
            out += ["", f"[{section}.{_name(name)}]", *_entries(recipe, (section, name), table)]
    for part in ("language", "encoder", "bridge", "view"):
        value = getattr(recipe.model, part)
        table = (
            {key: item for key, item in dataclasses.asdict(value).items() if item}
            if part == "language"
            else value
        )
        out += ["", f"[model.{part}]", *_entries(recipe, ("model", part), table)]
    for place, stage in enumerate(recipe.stages):
        out += ["", "[[stage]]", *_stage(recipe, place, stage)]
    return "\n".join(out) + "\n"


def stage_table(stage: shape.Stage) -> dict[str, Any]:
    """Return a stage as plain tables: what its hash covers and what the resolved copy shows."""
    table = {item.name: getattr(stage, item.name) for item in dataclasses.fields(stage)}
    table["data"] = [dataclasses.asdict(use) for use in stage.data]
    for key in ("lora", "replay"):
        if table.get(key) is not None:
            table[key] = dataclasses.asdict(table[key])
    return {
        key: list(item) if isinstance(item, tuple) else item
        for key, item in table.items()
        if item is not None
    }


def _stage(recipe: shape.Recipe, place: int, stage: shape.Stage) -> list[str]:
    table = stage_table(stage)
    subtables = {key: table.pop(key) for key in _SUBTABLES if isinstance(table.get(key), Mapping)}
    lists = {key: table.pop(key) for key in _LISTS if key in table}
    at: Key = ("stage", place)
    out = _entries(recipe, at, table)
    if "tools" in lists and not lists["tools"]:
        lists.pop("tools")
    for key, value in subtables.items():
        out += ["", f"[stage.{key}]", *_entries(recipe, (*at, key), value)]
    for key, tables in lists.items():
        for number, item in enumerate(tables):
            out += ["", f"[[stage.{key}]]", *_entries(recipe, (*at, key, number), item)]
    return out


def _entries(recipe: shape.Recipe, at: Key, table: Mapping[str, Any]) -> list[str]:
    out = []
    for key, value in table.items():
        origin = recipe.origins.get((*at, key), "default")
        if key == "recipe_folder" and origin == "default":
            origin = "folder of the recipe"
        if isinstance(value, list) and value and isinstance(value[0], Mapping):
            out += [f"{_name(key)} = [  # {origin}", *(f"  {_inline(item)}," for item in value), "]"]
        else:
            out.append(f"{_name(key)} = {_inline(value)}  # {origin}")
    return out


def _name(key: str) -> str:
    return key if _BARE.fullmatch(key) else _inline(key)


def _inline(value: Any) -> str:
    """Return a value as TOML on one line."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_name(str(key))} = {_inline(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_inline(item) for item in value) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # JSON's escapes are TOML's
    return json.dumps(value) if isinstance(value, bool) else repr(value)


def toml_tables(tables: Mapping[str, Any]) -> str:
    """Return nested tables as TOML with a header for each, as lock.toml is written."""
    out: list[str] = []

    def put(path: tuple[str, ...], table: Mapping[str, Any]) -> None:
        plain = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
        if path and (plain or not table):
            out.extend(["", f"[{'.'.join(_name(part) for part in path)}]"])
        out.extend(f"{_name(key)} = {_inline(value)}" for key, value in plain.items())
        for key, value in table.items():
            if isinstance(value, Mapping):
                put((*path, key), value)

    put((), tables)
    return "\n".join(out).lstrip("\n") + "\n"
