"""What a recipe brings to this machine, and what it sends away."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from evidcore.model.architecture import shipped
from evidcore.recipe import Recipe
from evidcore.registry import downloads, find
from evidcore.runs import model as models
from evidcore.runs.assembly import Assembly
from evidcore.runs.dry_run import is_fetched, tables
from evidcore.runs.lock import used
from evidcore.runs.model import StageOutputs


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


def sent(recipe: Recipe) -> Iterator[str]:
    """Yield what leaves this machine, and where to."""
    for where, table in tables(recipe):
        for what, key in (("texts", "sends_text_away"), ("images", "sends_images_away")):
            if table.get(key) is True and "url" in table:
                yield f"{what} of {', '.join(recipe.datasets)}, to {table['url']} ({where})"
    for name in recipe.observers:
        if says := getattr(find("observer", name).load(), "sends_away", ""):
            yield f"{says} (observer {name!r})"
