"""Write a Recipe out as TOML with every default, and where each value came from."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from evidcore.recipe import schema
from evidcore.recipe.lines import BARE, Key


def to_toml(recipe: schema.Recipe) -> str:
    """Return a recipe that loads to an equal Recipe; each value's comment says who gave it."""
    out = [f"# {recipe.name} with every default; behind each value, where it came from."]
    top = {
        "schema": recipe.SCHEMA, "name": recipe.name, "seed": recipe.seed,
        "recipe_folder": str(recipe.folder), "observers": list(recipe.observers),
        "threads": recipe.threads, "fitted": recipe.fitted,
    }  # fmt: skip
    out += _entries(recipe, (), top)
    named = {"dataset": recipe.datasets, "task": recipe.tasks, "service": recipe.services}
    for section, tables in named.items():
        for name, table in tables.items():
            out += ["", f"[{section}.{toml_key(name)}]", *_entries(recipe, (section, name), table)]
    plain = {"bfloat16": list(recipe.model.bfloat16), "load_in_4bit": recipe.model.load_in_4bit}
    out += ["", "[model]", *_entries(recipe, ("model",), plain)]
    for part in ("language", "encoder", "bridge", "view"):
        out += ["", f"[model.{part}]", *_entries(recipe, ("model", part), getattr(recipe.model, part))]
    out += ["", "[features]", *_entries(recipe, ("features",), dataclasses.asdict(recipe.features))]
    for index, stage in enumerate(recipe.stages):
        out += ["", "[[stage]]", *_stage(recipe, index, stage)]
    return "\n".join(out) + "\n"


def stage_table(stage: Any) -> dict[str, Any]:
    """Return a stage as plain tables: what its hash covers and what the resolved copy shows."""
    table: dict[str, Any] = {}
    for item in dataclasses.fields(stage):
        value = _plain(getattr(stage, item.name))
        if item.metadata.get("open"):
            table |= value
        elif value not in (None, []):
            table[item.name] = value
    return table


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {key: item for key, item in dataclasses.asdict(value).items() if item not in (None, "")}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _stage(recipe: schema.Recipe, place: int, stage: Any) -> list[str]:
    """Return a stage: plain values first, then components and other tables, each with a header of its own."""
    table = stage_table(stage)
    at: Key = ("stage", place)
    inline = {key: value for key, value in table.items() if key == "data" or not _is_nested(value)}
    out = _entries(recipe, at, inline)
    for key, value in table.items():
        if key in inline:
            continue
        if isinstance(value, Mapping):
            out += ["", f"[stage.{key}]", *_entries(recipe, (*at, key), value)]
        else:
            for number, item in enumerate(value):
                out += ["", f"[[stage.{key}]]", *_entries(recipe, (*at, key, number), item)]
    return out


def _is_nested(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(isinstance(item, Mapping) for item in value)
    return isinstance(value, Mapping)


def _entries(recipe: schema.Recipe, at: Key, table: Mapping[str, Any]) -> list[str]:
    out = []
    for key, value in table.items():
        origin = recipe.origins.get((*at, key), "default")
        if key == "recipe_folder" and origin == "default":
            origin = "folder of the recipe"
        if isinstance(value, list) and value and isinstance(value[0], Mapping):
            out += [f"{toml_key(key)} = [  # {origin}", *(f"  {toml_value(item)}," for item in value), "]"]
        else:
            out.append(f"{toml_key(key)} = {toml_value(value)}  # {origin}")
    return out


def toml_key(key: str) -> str:
    """Return a key as TOML writes it."""
    return key if BARE.fullmatch(key) else toml_value(key)


def toml_value(value: Any) -> str:
    """Return a value as TOML on one line."""
    if isinstance(value, Mapping):
        pairs = (f"{toml_key(str(key))} = {toml_value(item)}" for key, item in value.items())
        return f"{{ {', '.join(pairs)} }}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # JSON's escapes are TOML's
    return json.dumps(value) if isinstance(value, bool) else repr(value)


def toml_tables(tables: Mapping[str, Any]) -> str:
    """Return nested tables as TOML with a header for each, as lock.toml is written."""
    out: list[str] = []

    def put(path: tuple[str, ...], table: Mapping[str, Any]) -> None:
        plain = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
        if path and (plain or not table):
            out.extend(["", f"[{'.'.join(toml_key(part) for part in path)}]"])
        out.extend(f"{toml_key(key)} = {toml_value(value)}" for key, value in plain.items())
        for key, value in table.items():
            if isinstance(value, Mapping):
                put((*path, key), value)

    put((), tables)
    return "\n".join(out).lstrip("\n") + "\n"
