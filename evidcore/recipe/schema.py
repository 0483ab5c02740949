"""The JSON schema of recipes, for completion and checks in editors; made from the same signatures."""

from __future__ import annotations

import contextlib
import dataclasses
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from evidcore.errors import PluginError
from evidcore.recipe import shape, trl_fields
from evidcore.recipe.check import stage_class
from evidcore.registry import KIND_NAMES, offers
from evidcore.registry.factory import SERVICE_KINDS, Option, options, own_keys


def recipe_schema() -> dict[str, Any]:
    """Return the schema of what is installed here. Imports every component; broken ones are left out."""
    schema = _table(shape.Top)
    without_tables = {"observer", "command", "stage", "format"}
    definitions = {kind: _component(kind) for kind in sorted({*KIND_NAMES} - without_tables)}
    definitions["stage"] = {"anyOf": list(_stages())}
    definitions["service"] = {"anyOf": [{"$ref": f"#/$defs/{kind}"} for kind in SERVICE_KINDS]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "$defs": definitions}


def _stages() -> Iterator[dict[str, Any]]:
    """Yield the schema of each kind of stage that loads."""
    for offer in offers("stage"):
        with contextlib.suppress(PluginError):
            yield _stage(offer.name, stage_class(offer.name))


def _table(form: type) -> dict[str, Any]:
    hints = typing.get_type_hints(form, include_extras=True)
    fields = [item for item in dataclasses.fields(form) if not item.metadata.get("open")]
    properties = {item.name: _type(hints[item.name]) for item in fields}
    required = [item.name for item in fields if item.default is item.default_factory is dataclasses.MISSING]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _stage(kind: str, form: type) -> dict[str, Any]:
    """Return the schema of a stage; where it leaves keys open, those of all evaluations and audits fit."""
    table = _table(form)
    table["properties"]["kind"] = {"const": kind}
    table["required"] += ["kind"]
    if "trl" in table["properties"]:
        allowed = sorted(trl_fields.fields(kind).keys() - trl_fields.OWNED.keys())
        table["properties"]["trl"] = {
            "type": "object",
            "properties": {name: {} for name in allowed},
            "additionalProperties": False,
        }
    if any(item.metadata.get("open") for item in dataclasses.fields(form)):
        del table["additionalProperties"]
    return table


def _type(annotation: Any) -> dict[str, Any]:
    from pydantic import TypeAdapter

    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    kind = next((item for item in inner[1:] if isinstance(item, shape.Kind)), None)
    if kind is not None:
        table = {"$ref": f"#/$defs/{kind.name}"}
        return {"anyOf": [table, {"type": "string"}]} if kind.or_service else table
    if dataclasses.is_dataclass(annotation) and isinstance(annotation, type):
        return _table(annotation)
    if inner and dataclasses.is_dataclass(inner[0]) and isinstance(inner[0], type) and origin is not tuple:
        return _table(inner[0])
    if origin is tuple:
        return {"type": "array", "items": _type(inner[0])}
    if origin is Mapping and len(inner) == 2 and "Kind" in repr(inner[1]):
        return {"type": "object", "additionalProperties": _type(inner[1])}
    return TypeAdapter(annotation).json_schema()


def _component(kind: str) -> dict[str, Any]:
    """Return the choices of a kind: one table for each component that loads."""
    choices = []
    for offer in offers(kind):
        try:
            known = options(offer.load(), kind)
        except PluginError:
            continue
        names = [offer.name, f"{offer.package}/{offer.name}"]
        properties: dict[str, Any] = {"use": {"enum": names}}
        if kind in SERVICE_KINDS:
            properties["kind"] = {"const": kind}
        if kind in shape.OWN_KEYS:
            hints = typing.get_type_hints(shape.OWN_KEYS[kind], include_extras=True)
            properties |= {key: _type(hints[key]) for key in sorted(own_keys(kind) - {"use"})}
        properties |= {name: _option(option) for name, option in known.items()}
        required = ["use", *(name for name, option in known.items() if option.is_required)]
        choices.append({
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        })
    return {"anyOf": choices} if choices else {"type": "object"}


def _option(option: Option) -> dict[str, Any]:
    if option.kind is not None:
        one = {"anyOf": [{"$ref": f"#/$defs/{option.kind}"}, {"type": "string"}]}
        return {"type": "array", "items": one} if option.is_list else one
    return _type(option.type)
