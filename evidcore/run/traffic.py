"""What a recipe brings to this machine, and what it sends away."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from evidcore.model.architecture import shipped
from evidcore.recipe import Recipe
from evidcore.recipe.resolve import stage_table
from evidcore.registry import downloads
from evidcore.run import model as models
from evidcore.run.assembly import Assembly
from evidcore.run.lock import used
from evidcore.run.model import StageOutputs


def fetched(assembly: Assembly, cards: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield what a recipe fetches, with its size and licence where they are known."""
    recipe = assembly.recipe
    names = {offer.name for offer in used(recipe)}
    for package, table in cards.items():
        yield from (f"{text} ({package})" for text in downloads(table, names))
    named: list[tuple[str, Mapping[str, Any]]] = [("model.language", recipe.model.language)]
    for where, table in (*named, *tables(recipe)):
        if is_fetched(table):
            known = shipped().get(str(table["id"]))
            facts = "see its page for its size and licence"
            if known is not None:
                facts = f"{known.weights_bytes / 1e9:.2f} GB, {known.licence} ({known.page})"
            yield f"{table['id']} at {table['revision']}, from the Hugging Face Hub, for {where}: {facts}"
    if missing := models.encoder(assembly, StageOutputs()).missing_weights():
        yield f"model.encoder, {missing}"


def is_fetched(table: Mapping[str, Any]) -> bool:
    """Tell whether a table names a model on the Hub, and nothing on this machine in its place."""
    return bool(
        table.get("id") and table.get("revision") and not table.get("folder") and not table.get("file")
    )


def sent(recipe: Recipe) -> Iterator[str]:
    """Yield what leaves this machine, and where to."""
    for where, table in tables(recipe):
        if table.get("sends_text_away") is True and "url" in table:
            yield f"texts of {', '.join(recipe.datasets)}, to {table['url']} ({where})"


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
