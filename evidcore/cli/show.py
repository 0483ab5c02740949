"""`evid show`: what a component takes."""

from __future__ import annotations

import inspect
import json
import typing
from typing import Any

import click

from evidcore.errors import PluginError, did_you_mean
from evidcore.registry import KIND_NAMES, Offer, card, offers


@click.command()
@click.argument("name", required=False)
@click.option("--kind", type=click.Choice(KIND_NAMES), help="Where two kinds have a component of that name.")
@click.option("--schema", is_flag=True, help="Print the JSON schema of recipes, for editors.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(name: str | None, kind: str | None, schema: bool, as_json: bool) -> None:
    """Show a component: its package and card, its options with types, defaults and bounds, its docstring."""
    if schema:
        from evidcore.recipe.schema import recipe_schema

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
    from evidcore.registry.factory import flat_forms, options

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
