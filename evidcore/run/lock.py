"""What a run's numbers depend on beside its recipe: code, data and versions, written to lock.toml."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any

from evidcore.recipe import Recipe
from evidcore.recipe.resolve import stage_table
from evidcore.registry import Offer, find, offers
from evidcore.registry.factory import SERVICE_KINDS
from evidcore.run.code import offer_hash
from evidcore.run.processes import processes

VERSIONS = ("torch", "transformers", "trl", "accelerate", "peft", "monai", "numpy", "nibabel")
MEASURING = ("nltk", "rapidfuzz", "sacrebleu")  # they change figures of texts, and no training


def lock_table(recipe: Recipe, datasets: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables of lock.toml.

    Args:
        recipe: what is run.
        datasets: its data sets, built.
    """
    packages: dict[str, dict[str, Any]] = {}
    for offer in used(recipe):
        entry = packages.setdefault(offer.package, {"version": offer.version, "components": {}})
        entry["code"] = offer_hash(offer)
        entry["components"][f"{offer.kind}/{offer.name}"] = offer.target
    return {
        "recipe": {
            "path": str(recipe.path.resolve()),
            "folder": str(recipe.folder),
            "hash": hashlib.sha256(recipe.text.encode()).hexdigest(),
            "overrides": list(recipe.overrides),
        },
        "package": packages,
        "dataset": {name: {"fingerprint": item.fingerprint()} for name, item in datasets.items()},
        "versions": versions(),
        "hardware": hardware(),
    }


def used(recipe: Recipe) -> list[Offer]:
    """Return every component that a recipe names, the core's first."""
    tables: dict[str, Any] = {
        "dataset": list(recipe.datasets.values()),
        "task": list(recipe.tasks.values()),
        "encoder": recipe.model.encoder,
        "bridge": recipe.model.bridge,
        "view": recipe.model.view,
    }
    found = {offer for kind, value in tables.items() for offer in named(kind, value)}
    for table in recipe.services.values():
        found |= set(named(str(table["kind"]), table))
    for stage in recipe.stages:
        found |= set(stage_offers(stage_table(stage)))
    found |= {find("observer", name) for name in recipe.observers}
    return sorted(
        found, key=lambda offer: (offer.package != "evidcore", offer.package, offer.kind, offer.name)
    )


def stage_offers(table: Mapping[str, Any]) -> Iterator[Offer]:
    """Yield the components of a stage's own tables."""
    for key, kind in (
        ("reweighter", "reweighter"),
        ("rollout", "rollout"),
        ("reward", "reward"),
        ("labeler", "labeler"),
        ("segmenter", "segmenter"),
        ("metric", "metric"),
        ("tools", "tool"),
        ("rescue", "scorer"),
    ):
        yield from named(kind, table.get(key))


def named(kind: str, value: Any) -> Iterator[Offer]:
    """Yield the component of a table (or of each of a list), and those inside its options."""
    if isinstance(value, list | tuple):
        for item in value:
            yield from named(kind, item)
    elif isinstance(value, Mapping):
        if isinstance(value.get("use"), str):
            yield find(kind, value["use"])
        for item in value.values():
            if isinstance(item, Mapping) and isinstance(item.get("use"), str):
                for inner in (*SERVICE_KINDS, "dataset"):  # a data set may stand on another
                    if any(row.name == item["use"].rpartition("/")[2] for row in offers(inner)):
                        yield from named(inner, item)


def versions(names: Sequence[str] = VERSIONS) -> dict[str, str]:
    """Return the versions that may change a number: Python's, and those of packages."""
    found = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def hardware() -> dict[str, Any]:
    """Return what the run runs on."""
    import torch

    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    found: dict[str, Any] = {
        "platform": sys.platform,
        "machine": platform.machine(),
        "processes": processes().count,
        "cores": os.cpu_count() or 0,
        "torch_threads": torch.get_num_threads(),
        "memory_gb": round(memory_bytes / 1e9, 1),
    }
    if torch.cuda.is_available():
        count = torch.cuda.device_count()
        found["gpus"] = [torch.cuda.get_device_name(number) for number in range(count)]
    return found
