"""The defaults of a table, from its component's signature; what a `fit` stage may say, from that of `fit`."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Mapping
from typing import Any

from evidcore.recipe.schema import Model, Surroundings, default_use
from evidcore.registry import find, watch
from evidcore.registry.factory import Option, is_isolated, options, own_keys


def resolved(kind: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """Return `table` with every default filled in, as TOML values; a default of None stays away."""
    known = options(find(kind, table["use"]).load(), kind)
    full = {key: table[key] for key in table if key in own_keys(kind) - {"isolated"}}
    if is_isolated(kind, table):
        full["isolated"] = watch("isolation", "`isolated`").resolved(table["isolated"])
    full |= resolved_options(known, {key: table[key] for key in table if key not in own_keys(kind)})
    return full


def resolved_options(known: Mapping[str, Option], table: Mapping[str, Any]) -> dict[str, Any]:
    """Return `table` with the defaults of `known`."""
    full: dict[str, Any] = {}
    for name, option in known.items():
        value = table.get(name, option.default)
        if value is None or value is inspect.Parameter.empty:
            continue
        if option.kind is not None and isinstance(value, Mapping):
            full[name] = resolved(option.kind, value)
        elif option.kind is not None and option.is_list:
            full[name] = [item if isinstance(item, str) else resolved(option.kind, item) for item in value]
        else:
            full[name] = _plain(value)
    return full


def _plain(value: Any) -> Any:
    """Return a default as a TOML value."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    return value if isinstance(value, bool | int | float | str) else str(value)


def fit_options(component: str, around: Surroundings) -> dict[str, Option] | None:
    """Return the options of a component's `fit`, None if it has none.

    Args:
        component: "model.encoder", "model.language" or "service.<name>".
        around: the recipe as read.

    Raises:
        PluginError: if the component cannot be loaded, or `fit` has an option without a type.
    """
    fit = getattr(made_class(factory_of(component, around)), "fit", None)
    return None if fit is None else options(fit)


def factory_of(component: str, around: Surroundings) -> Any:
    """Return the factory of "model.encoder" or "service.<name>".

    Raises:
        PluginError: if there is no such component.
    """
    section, _, name = component.partition(".")
    use = around.table(section, name).get("use")
    if section == "model":
        return find(name, str(use or default_use(Model, name))).load()
    return find(around.services[name], str(use)).load()


def made_class(factory: Any) -> Any:
    """Return the class that a factory makes: itself, or what a function says it returns."""
    if inspect.isclass(factory):
        return factory
    try:
        return typing.get_type_hints(factory).get("return", object)
    except NameError:
        return object
