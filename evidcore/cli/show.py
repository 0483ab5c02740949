"""`evid show`: what a component takes."""

from __future__ import annotations

import contextlib
import inspect
import json
import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from evidcore.errors import PluginError, did_you_mean
from evidcore.registry import KIND_NAMES, Offer, card, is_ours, offers, watch
from evidcore.registry.signature import SERVICE_KINDS, flat_forms, options

if TYPE_CHECKING:
    from evidcore.registry.factory import Form  # brings pydantic, which `evid --help` needs not


def recipe_schema() -> dict[str, Any]:
    """Return the schema of what is installed here. Imports every component; broken ones are left out."""
    from evidcore.recipe.schema import Top
    from evidcore.registry.factory import form_of_class

    definitions: dict[str, Any] = {}

    def whole(form: Form, name: str) -> dict[str, Any]:
        """Return a form's schema; what it refers to goes to the definitions under names of its own."""
        text = json.dumps(form.schema).replace('"#/$defs/', f'"#/$defs/{name} ')
        result: dict[str, Any] = json.loads(text, object_hook=_referring)
        definitions.update({f"{name} {inner}": table for inner, table in result.pop("$defs", {}).items()})
        return result

    for kind in sorted({*KIND_NAMES} - {"observer", "command", "page", "format"}):
        choices = []
        for offer in offers(kind):
            odd = () if is_ours(offer.package) else (KeyError, TypeError)  # a schema of others may be none
            with contextlib.suppress(PluginError, *odd):
                choices.append(_choice(apart(offer), whole))
        definitions[kind] = {"anyOf": choices} if choices else {"type": "object"}
    definitions["service"] = {"anyOf": [{"$ref": f"#/$defs/{kind}"} for kind in SERVICE_KINDS]}
    top = whole(form_of_class(Top), "recipe")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **top, "$defs": definitions}


def _referring(node: dict[str, Any]) -> dict[str, Any]:
    """Put a reference to the definition of its kind where a schema says that a component stands."""
    if "x-component" not in node:
        return node
    table = {"$ref": f"#/$defs/{node['x-component']['name']}"}
    return {"anyOf": [table, {"type": "string"}]} if node["x-component"]["or_service"] else table


def _choice(offer: Offer, whole: Callable[[Form, str], dict[str, Any]]) -> dict[str, Any]:
    """Return the schema of one component's table, or of one kind of stage; what a stage leaves open fits."""
    from evidcore.recipe import trl_fields
    from evidcore.recipe.check import stage_class
    from evidcore.registry.factory import Components, form_of_class

    is_stage = offer.kind == "stage" and offer.apart is None
    form = form_of_class(stage_class(offer.name)) if is_stage else Components().form(offer)
    if offer.kind == "stage":
        table = whole(form, f"stage {offer.name}")
        properties = table["properties"] | {"kind": {"const": offer.name}}
        if "trl" in properties:
            fields: dict[str, Any] = {name: {} for name in sorted(trl_fields.PASSED[offer.name])}
            properties["trl"] = {"type": "object", "properties": fields, "additionalProperties": False}
        result = {**table, "properties": properties, "required": [*table.get("required", ()), "kind"]}
        if form.leaves_open:
            del result["additionalProperties"]
        return result
    table = whole(form, f"{offer.kind} {offer.name}")
    properties = table["properties"] | {"use": {"enum": [offer.name, f"{offer.package}/{offer.name}"]}}
    if offer.kind in SERVICE_KINDS:
        properties["kind"] = {"const": offer.kind}
    if "isolated" in properties:
        isolation = watch("isolation")
        limits = [] if isolation is None else [form_of_class(isolation.Isolated).schema]
        properties["isolated"] = {"anyOf": [{"type": "boolean"}, *limits]}
    return {**table, "properties": properties, "required": ["use", *table.get("required", ())]}


def installed(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the components whose names begin so, for a shell that completes them; imports none."""
    result = offers(context.params.get("kind"))
    return sorted({offer.name for offer in result if offer.name.startswith(incomplete)})


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
    listed = [_listed(offer) for offer in _named(name, kind)]
    if as_json:
        click.echo(json.dumps(listed, indent=1, default=str))
        return
    for item in listed:
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
    result = [row for row in rows if row.name == bare and package in ("", row.package)]
    if not result:
        known = [row.name for row in rows]
        raise PluginError(
            f"no {kind or 'component'} is called {name!r}.{did_you_mean(bare, known)} See `evid plugins`."
        )
    return result


def apart(offer: Offer) -> Offer:
    """Return a component so that code of others loads in a process apart, where the Hub's package is here."""
    isolation = None if is_ours(offer.package) else watch("isolation")
    return offer if isolation is None else isolation.apart(offer)


def _listed(offer: Offer) -> dict[str, Any]:
    other = apart(offer).apart
    rows = described(offer) if other is None else other.listing()
    return {**vars(offer), **rows, "card": card(offer.package)}


def described(offer: Offer) -> dict[str, Any]:
    """Return what a component says of itself and takes; imports it."""
    from evidcore.registry.signature import component_class

    factory = offer.load()
    made = component_class(factory)
    fit = getattr(made, "fit", None)
    about = [inspect.getdoc(factory) or ""]
    if "Args:" in (init := factory.__init__.__doc__ or "") or (init and "__init__" in vars(factory)):
        about.append(inspect.cleandoc(init))
    about += [inspect.cleandoc(form.__doc__ or "") for form in flat_forms(factory)]
    return {
        "about": "\n\n".join(about),
        "options": [_option(item) for item in options(factory, offer.kind).values()],
        "fit_options": [] if fit is None else [_option(item) for item in options(fit).values()],
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
    text = " and ".join(f"{words[key]} {value}" for key, value in limits.items())
    return text or " ".join(map(repr, bounds))
