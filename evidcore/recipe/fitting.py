"""What a `fit` stage may say: the options of the `fit` that a recipe's component has."""

from __future__ import annotations

import inspect
import typing
from typing import Any

from evidcore.recipe.shape import Model, Surroundings, default_use
from evidcore.registry import find
from evidcore.registry.factory import Option, options


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
