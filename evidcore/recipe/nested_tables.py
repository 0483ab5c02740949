"""Every table of a recipe below its own keys, and which of them name a model on the Hub."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from evidcore.recipe.resolve import stage_table
from evidcore.recipe.shape import Recipe


def tables(recipe: Recipe) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield every table inside data sets, tasks, services and stages, and where it stands."""
    sections = {"dataset": recipe.datasets, "task": recipe.tasks, "service": recipe.services}
    waiting: list[tuple[str, Any]] = [
        (f"{section}.{name}", table) for section, tables in sections.items() for name, table in tables.items()
    ]
    waiting += [
        (f"stage.{recipe.stage_name(place)}", stage_table(stage)) for place, stage in enumerate(recipe.stages)
    ]
    while waiting:
        where, value = waiting.pop(0)
        if isinstance(value, Mapping):
            yield where, value
            waiting += [(f"{where}.{key}", item) for key, item in value.items()]
        elif isinstance(value, list | tuple):
            waiting += [(f"{where}[{number}]", item) for number, item in enumerate(value)]


def is_fetched(table: Mapping[str, Any]) -> bool:
    """Tell whether a table names a model on the Hub, and nothing on this machine in its place."""
    return bool(
        table.get("id") and table.get("revision") and not table.get("folder") and not table.get("file")
    )
