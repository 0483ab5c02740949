"""What a run's numbers depend on beside its recipe: code, data and versions, written to lock.toml."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from evidcore.compute.processes import processes
from evidcore.contracts import Stage
from evidcore.errors import RunError
from evidcore.recipe import Recipe
from evidcore.registry import Offer, find, is_ours, watch
from evidcore.registry.factory import is_isolated, options
from evidcore.runs.code import offer_hash
from evidcore.runs.folder import difference

VERSIONS = ("torch", "transformers", "trl", "accelerate", "peft", "monai", "numpy", "nibabel")


def lock_table(recipe: Recipe, datasets: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables of lock.toml."""
    packages: dict[str, dict[str, Any]] = {}
    for offer in used(recipe):
        entry = packages.setdefault(offer.package, {"version": offer.version, "components": {}})
        entry["code"] = offer_hash(offer)
        entry["components"][f"{offer.kind}/{offer.name}"] = offer.target
    fence = {}
    if has_isolated(recipe):
        fence["isolation"] = {"network_blocked": watch("isolation", "`isolated`").network_blocked()}
    pins = watch("pins")
    kept = () if pins is None else pins.kept().values()
    return fence | {
        "recipe": {
            "path": str(recipe.path.resolve()),
            "folder": str(recipe.folder),
            "hash": hashlib.sha256(recipe.text.encode()).hexdigest(),
            "overrides": list(recipe.overrides),
        },
        "package": packages,
        "plugin": {pin.package: pin.table for pin in kept if pin.package in packages},
        "dataset": {name: {"fingerprint": item.fingerprint()} for name, item in datasets.items()},
        "versions": versions(),
        "hardware": hardware(),
    }


def refuse_drift(path: Path, drift: Sequence[str]) -> None:
    """Raise RunError with the first three lines of what differs from a lock, if anything does."""
    if drift:
        more = [f"and {len(drift) - 3} more"] if len(drift) > 3 else []
        listing = "\n".join(f"  {line}" for line in [*drift[:3], *more])
        raise RunError(f"{path}: this is not what was locked\n{listing}")


def drift(tables: Mapping[str, Any], lock: Mapping[str, Any]) -> list[str]:
    """Return what differs between the tables of a lock and the lock that a run would have today."""
    if "package" not in tables:  # an evid.lock: it pins what is not of this repository
        return [
            f"package.{name}: is not pinned" for name in lock["package"]
            if not is_ours(name) and name not in lock["plugin"]
        ]  # fmt: skip
    return [
        line
        for name in ("package", "plugin", "dataset", "versions")
        for line in difference(tables.get(name, {}), lock[name], f"{name}.")
    ]


def has_isolated(recipe: Recipe) -> bool:
    """Tell whether a component of a recipe runs in a process of its own."""
    tables = [row for item in recipe.services.values() for row in named_tables(str(item["kind"]), item)]
    tables += [row for stage in recipe.stages for row in stage_tables(stage, recipe)]
    return any(is_isolated(offer.kind, table) for offer, table in tables)


def used(recipe: Recipe) -> list[Offer]:
    """Return every component that a recipe names, the core's first."""
    tables: dict[str, Any] = {
        "dataset": list(recipe.datasets.values()),
        "task": list(recipe.tasks.values()),
        "encoder": recipe.model.encoder,
        "bridge": recipe.model.bridge,
        "view": recipe.model.view,
        "language": recipe.model.language,
    }
    result = {offer for kind, value in tables.items() for offer in named(kind, value)}
    for table in recipe.services.values():
        result |= set(named(str(table["kind"]), table))
    for stage in recipe.stages:
        result |= {offer for offer, _ in stage_tables(stage, recipe)}
    result |= {find("observer", name) for name in recipe.observers}
    return sorted(
        result, key=lambda offer: (offer.package != "evidcore", offer.package, offer.kind, offer.name)
    )


def stage_tables(stage: Stage, recipe: Recipe) -> Iterator[tuple[Offer, Mapping[str, Any]]]:
    """Yield a stage, and the components that its tables name, each with its table."""
    yield find("stage", stage.kind), {}
    for kind, value in stage.components(recipe):
        yield from named_tables(kind, value)


def named_tables(kind: str, value: Any) -> Iterator[tuple[Offer, Mapping[str, Any]]]:
    """Yield the component of a table (or of each of a list), and those inside its options, with tables."""
    if isinstance(value, list | tuple):
        for item in value:
            yield from named_tables(kind, item)
    elif isinstance(value, Mapping) and isinstance(value.get("use"), str):
        offer = find(kind, value["use"])
        yield offer, value
        for name, option in options(offer.load(), kind).items():
            if option.kind is not None and name in value:
                yield from named_tables(option.kind, value[name])


def named(kind: str, value: Any) -> Iterator[Offer]:
    """Yield the component of a table (or of each of a list), and those inside its options."""
    for offer, _ in named_tables(kind, value):
        yield offer


def requirements(offers: Iterable[Offer]) -> list[str]:
    """Return the packages that those of components require, as their metadata say; the core's are known."""
    packages = {offer.package for offer in offers} - {"evidcore"}
    return sorted({n for package in packages for n in _required(package) if not n.startswith("evidcore")})


def built_on(offers: Iterable[Offer]) -> set[str]:
    """Return the packages of ours that those of components require, however indirectly: their code counts."""
    result: set[str] = set()
    waiting = {offer.package for offer in offers} - {"evidcore"}
    while waiting:
        waiting = {n for package in waiting for n in _required(package) if n.startswith("evidcore-")} - result
        result |= waiting
    return result


@functools.cache
def _required(package: str) -> frozenset[str]:
    lines = [line for line in metadata.requires(package) or () if "extra ==" not in line]
    return frozenset(re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0] for line in lines)


def versions(names: Sequence[str] = VERSIONS) -> dict[str, str]:
    """Return the versions that may change a number: Python's without its patch, and those of packages."""
    result = {"python": platform.python_version().rpartition(".")[0]}
    for name in names:
        try:
            result[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            result[name] = "not installed"
    return result


def hardware() -> dict[str, Any]:
    """Return what the run runs on."""
    import torch

    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    result: dict[str, Any] = {
        "platform": sys.platform,
        "machine": platform.machine(),
        "processes": processes().count,
        "cores": os.cpu_count() or 0,
        "torch_threads": torch.get_num_threads(),
        "memory_gb": round(memory_bytes / 1e9, 1),
    }
    if torch.cuda.is_available():
        count = torch.cuda.device_count()
        result["gpus"] = [torch.cuda.get_device_name(number) for number in range(count)]
    return result
