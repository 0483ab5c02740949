"""`evid show`: what a component takes."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import json
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import click

from evidcore.errors import PluginError, did_you_mean
from evidcore.recipe import schema, trl_fields
from evidcore.recipe.check import stage_class
from evidcore.registry import KIND_NAMES, Offer, card, offers, watch
from evidcore.registry.factory import SERVICE_KINDS, Option, flat_forms, options, own_keys


def recipe_schema() -> dict[str, Any]:
    """Return the schema of what is installed here. Imports every component; broken ones are left out."""
    top = _table(schema.Top)
    without_tables = {"observer", "command", "page", "stage", "format"}
    definitions = {kind: _component(kind) for kind in sorted({*KIND_NAMES} - without_tables)}
    definitions["stage"] = {"anyOf": list(_stages())}
    definitions["service"] = {"anyOf": [{"$ref": f"#/$defs/{kind}"} for kind in SERVICE_KINDS]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **top, "$defs": definitions}


def _stages() -> Iterator[dict[str, Any]]:
    """Yield the schema of each kind of stage that loads."""
    for offer in offers("stage"):
        with contextlib.suppress(PluginError):
            yield _stage(offer.name, stage_class(offer.name))


def _table(form: type) -> dict[str, Any]:
    hints = typing.get_type_hints(form, include_extras=True)
    fields = [item for item in dataclasses.fields(form) if not item.metadata.get("open")]
    properties = {item.name: _schema_type(hints[item.name]) for item in fields}
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


def _schema_type(annotation: Any) -> dict[str, Any]:
    from pydantic import TypeAdapter

    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    kind = next((item for item in inner[1:] if isinstance(item, schema.Kind)), None)
    if kind is not None:
        table = {"$ref": f"#/$defs/{kind.name}"}
        return {"anyOf": [table, {"type": "string"}]} if kind.or_service else table
    if dataclasses.is_dataclass(annotation) and isinstance(annotation, type):
        return _table(annotation)
    if inner and dataclasses.is_dataclass(inner[0]) and isinstance(inner[0], type) and origin is not tuple:
        return _table(inner[0])
    if origin is tuple:
        return {"type": "array", "items": _schema_type(inner[0])}
    if origin is Mapping and len(inner) == 2 and "Kind" in repr(inner[1]):
        return {"type": "object", "additionalProperties": _schema_type(inner[1])}
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
        if kind in schema.OWN_KEYS:
            hints = typing.get_type_hints(schema.OWN_KEYS[kind], include_extras=True)
            properties |= {key: _schema_type(hints[key]) for key in sorted(hints.keys() - {"use"})}
        if "isolated" in own_keys(kind):
            isolation = watch("isolation")
            limits = [] if isolation is None else [_table(isolation.Isolated)]
            properties["isolated"] = {"anyOf": [{"type": "boolean"}, *limits]}
        properties |= {name: _schema_option(option) for name, option in known.items()}
        required = ["use", *(name for name, option in known.items() if option.is_required)]
        choices.append({
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        })
    return {"anyOf": choices} if choices else {"type": "object"}


def _schema_option(option: Option) -> dict[str, Any]:
    if option.kind is not None:
        one = {"anyOf": [{"$ref": f"#/$defs/{option.kind}"}, {"type": "string"}]}
        return {"type": "array", "items": one} if option.is_list else one
    return _schema_type(option.type)


def installed(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the components whose names begin so, for a shell that completes them; imports none."""
    found = offers(context.params.get("kind"))
    return sorted({offer.name for offer in found if offer.name.startswith(incomplete)})


@click.command()
@click.argument("name", required=False, shell_complete=installed)
@click.option("--kind", type=click.Choice(KIND_NAMES), help="Where two kinds have a component of that name.")
@click.option("--schema", is_flag=True, help="Print the JSON schema of recipes, for editors.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(name: str | None, kind: str | None, schema: bool, as_json: bool) -> None:
    """Show a component: its package and card, its options with types, defaults and bounds, its docstring."""
    if schema:
        click.echo(json.dumps(recipe_schema(), indent=1))
        return
    if name is None:
        raise click.UsageError("give the NAME of a component, or --schema.")
    shown = [_shown(offer) for offer in _named(name, kind)]
    if as_json:
        click.echo(json.dumps(shown, indent=1, default=str))
        return
    for item in shown:
        click.echo(
            f"{item['kind']} {item['name']}, from {item['package']} {item['version']} ({item['target']})"
        )
        click.echo()
        click.echo(inspect.cleandoc(item["about"]) or "(no docstring)")
        for title, rows in (("options", item["options"]), ("options of its fit stage", item["fit_options"])):
            if rows:
                click.echo(f"\n{title}")
            for row in rows:
                default = "required" if row["required"] else f"= {row['default']}"
                click.echo(f"  {row['name']}: {row['type']} {default}")
        if item["card"]:
            click.echo("\ncard")
            for key, value in item["card"].items():
                click.echo(f"  {key} = {value}")
        click.echo()


def _named(name: str, kind: str | None) -> list[Offer]:
    package, _, bare = name.rpartition("/")
    rows = offers(kind)
    found = [row for row in rows if row.name == bare and package in ("", row.package)]
    if not found:
        known = [row.name for row in rows]
        raise PluginError(
            f"no {kind or 'component'} is called {name!r}.{did_you_mean(bare, known)} See `evid plugins`."
        )
    return found


def _shown(offer: Offer) -> dict[str, Any]:
    from evidcore.recipe.fitting import made_class

    factory = offer.load()
    made = made_class(factory)
    fit = getattr(made, "fit", None)
    about = [inspect.getdoc(factory) or ""]
    if inspect.isclass(factory) and factory.__init__.__doc__ and "__init__" in vars(factory):
        about.append(inspect.cleandoc(factory.__init__.__doc__))
    about += [inspect.cleandoc(form.__doc__ or "") for form in flat_forms(factory)]
    return {
        **vars(offer),
        "about": "\n\n".join(about),
        "options": [_option(item) for item in options(factory, offer.kind).values()],
        "fit_options": [] if fit is None else [_option(item) for item in options(fit).values()],
        "card": card(offer.package),
    }


def _option(option: Any) -> dict[str, Any]:
    return {
        "name": option.name,
        "type": f"a {option.kind}" if option.kind else _type(option.type),
        "required": option.is_required,
        "default": None if option.is_required else option.default,
    }


def _type(annotation: Any) -> str:
    """Return a type as people read it: `float, from 0 to 1`."""
    if typing.get_origin(annotation) is not typing.Annotated:
        text = inspect.formatannotation(annotation)
        return text.replace("typing.", "").replace("collections.abc.", "")
    bare, *bounds = typing.get_args(annotation)
    return ", ".join([_type(bare), _bounds(bounds)])


def _bounds(bounds: list[Any]) -> str:
    """Return the limits that annotated_types give."""
    limits = {
        key: getattr(item, key) for item in bounds for key in ("ge", "le", "gt", "lt") if hasattr(item, key)
    }
    if limits.keys() == {"ge", "le"}:
        return f"from {limits['ge']} to {limits['le']}"
    words = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
    return " and ".join(f"{words[key]} {value}" for key, value in limits.items()) or " ".join(
        map(repr, bounds)
    )
