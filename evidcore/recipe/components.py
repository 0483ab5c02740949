"""The components of a recipe that need neither model nor weights, each built once under its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evidcore.recipe.shape import Recipe
from evidcore.registry import factory


def build_services(recipe: Recipe, given: Mapping[str, Any]) -> dict[str, Any]:
    """Build the services; each may name those above it.

    Args:
        recipe: names them.
        given: what the core gives: `recipe_folder`, `cache_folder`.
    """
    services: dict[str, Any] = {}
    for name, table in recipe.services.items():
        bare = {key: value for key, value in table.items() if key != "kind"}
        services[name] = factory.build(
            str(table["kind"]),
            bare,
            given=given,
            where=f"service.{name}",
            services=services,
        )
    return services


def build_datasets(recipe: Recipe, given: Mapping[str, Any], *, only: str | None = None) -> dict[str, Any]:
    """Build the data sets, or the one that is named."""
    return {
        name: factory.build("dataset", table, given=given, where=f"dataset.{name}")
        for name, table in recipe.datasets.items()
        if only in (None, name)
    }


def build_tasks(recipe: Recipe, given: Mapping[str, Any], services: Mapping[str, Any]) -> dict[str, Any]:
    """Build the tasks over services that are built."""
    return {
        name: factory.build("task", table, given=given, where=f"task.{name}", services=services)
        for name, table in recipe.tasks.items()
    }
