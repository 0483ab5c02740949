"""What a number depends on: a run's lock, and a stage's inputs, by whose hash a finished stage is used again.

The lock names code, data and versions, and goes to lock.toml. A stage's inputs are those of them that its
result depends on, with its tables of the recipe and the hashes of the stages that it starts from.
"""

import dataclasses
import functools
import hashlib
import inspect
import json
import os
import platform
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata, util
from pathlib import Path
from typing import Any

from evidcore.compute.processes import processes
from evidcore.contracts import Reader, Stage
from evidcore.data import file_hash
from evidcore.errors import RunError
from evidcore.recipe import Recipe
from evidcore.recipe.resolve import stage_table
from evidcore.registry import Offer, find, is_ours, watch
from evidcore.registry.factory import is_isolated, named_offer, offer_of, options
from evidcore.runs.assembly import Assembly
from evidcore.runs.context import Context
from evidcore.runs.folder import difference, folder_hash, sha256

CORE = "evidcore"
_WITHOUT_NUMBERS = ("cli",)  # rooms of the core that change no number
_LOCKED = ("package", "plugin", "dataset", "versions")  # tables of the lock that another is compared by


@functools.cache
def package_hash(module: str) -> str:
    """Return a hash of all files of an installed (or edited in place) top-level module."""
    spec = util.find_spec(module)
    places = [] if spec is None else [*(spec.submodule_search_locations or ()), spec.origin]
    root = next((Path(place) for place in places if place), None)
    if root is None or root.is_file():
        return "missing" if root is None else sha256(root)
    beside = _WITHOUT_NUMBERS if module == CORE else ()
    return folder_hash(
        root, lambda name: "__pycache__" not in name and name[0] != "." and name.split("/")[0] not in beside
    )


def offer_hash(offer: Offer) -> str:
    """Return the hash of the package behind a component."""
    return str(_elsewhere(offer).get("code") or package_hash(top_module(offer.target)))


def _elsewhere(offer: Offer) -> Mapping[str, Any]:
    """Return hash and versions, `code` and `versions`, where a component has an environment of its own."""
    return {} if offer.apart is None else dict(offer.apart.elsewhere())


def _package(offer: Offer) -> str:
    """Return what a package is called among those of a run, of which two versions may serve."""
    return f"{offer.package} isolated" if _elsewhere(offer) else offer.package


def top_module(target: str) -> str:
    """Return the top-level module of a component's `module:attribute`."""
    return target.partition(":")[0].partition(".")[0]


VERSIONS = ("torch", "transformers", "trl", "accelerate", "peft", "monai", "numpy", "nibabel")


def lock_table(recipe: Recipe, datasets: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables of lock.toml."""
    packages: dict[str, dict[str, Any]] = {}
    for offer in used(recipe):
        entry = packages.setdefault(_package(offer), {"version": offer.version, "components": {}})
        entry["code"] = offer_hash(offer)
        entry |= {"environment": facts["versions"]} if (facts := _elsewhere(offer)) else {}
        entry["components"][f"{offer.kind}/{offer.name}"] = offer.target
    fence = {"isolation": watch("isolation", "`isolated`").blocked()} if has_isolated(recipe) else {}
    pins = watch("pins")
    pinned = () if pins is None else pins.kept().values()
    return fence | {
        "recipe": {
            "path": str(recipe.path.resolve()),
            "folder": str(recipe.folder),
            "hash": hashlib.sha256(recipe.text.encode()).hexdigest(),
            "overrides": list(recipe.overrides),
        },
        "package": packages,
        "plugin": {pin.package: pin.table for pin in pinned if pin.package in packages},
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
    return [line for name in _LOCKED for line in difference(tables.get(name, {}), lock[name], f"{name}.")]


def identity_of(component: Any, folder: Path) -> list[Any]:
    """Return by what a built component gives the same: options, files that they name, code, versions."""
    offer = offer_of(component)
    inner = functools.partial(identity_of, folder=folder)
    table = json.loads(json.dumps(component.evid_table, default=inner, sort_keys=True))
    files = dict(_files(folder, [(offer, table)]))
    return [table, files, offer_hash(offer), versions(requirements([offer]))]


def has_isolated(recipe: Recipe) -> bool:
    """Tell whether a component of a recipe runs in a process of its own."""
    return any(is_isolated(offer.kind, table) for offer, table in recipe_tables(recipe))


def used(recipe: Recipe) -> list[Offer]:
    """Return every component that a recipe names, the core's first."""
    result = {offer for offer, _ in recipe_tables(recipe)}
    result |= {find("observer", name) for name in recipe.observers}
    return sorted(result, key=lambda offer: (offer.package != CORE, offer.package, offer.kind, offer.name))


def recipe_tables(recipe: Recipe) -> Iterator[tuple[Offer, Mapping[str, Any]]]:
    """Yield the components that the tables of a recipe name, each with its table."""
    parts = ("encoder", "bridge", "view", "language")
    tables = [("dataset", table) for table in recipe.datasets.values()]
    tables += [("task", table) for table in recipe.tasks.values()]
    tables += [(part, getattr(recipe.model, part)) for part in parts]
    tables += [(str(table["kind"]), table) for table in recipe.services.values()]
    yield from (pair for kind, table in tables for pair in named_tables(kind, table))
    yield from (pair for stage in recipe.stages for pair in stage_tables(stage, recipe))


def stage_tables(stage: Stage, recipe: Recipe) -> Iterator[tuple[Offer, Mapping[str, Any]]]:
    """Yield a stage, and the components that its tables name, each with its table."""
    yield find("stage", stage.kind), {}
    for kind, value in stage.components(recipe):
        yield from named_tables(kind, value)


def named_tables(kind: str, value: Any, isolated: Any = None) -> Iterator[tuple[Offer, Mapping[str, Any]]]:
    """Yield the component of a table (or of each of a list), and those inside its options, with tables."""
    if isinstance(value, list | tuple):
        for item in value:
            yield from named_tables(kind, item, isolated)
    elif isinstance(value, Mapping) and isinstance(value.get("use"), str):
        isolated = value["isolated"] if is_isolated(kind, value) else isolated
        offer = named_offer(kind, value, isolated)
        yield offer, value
        for name, option in options(offer.load(), kind).items():
            if option.kind is not None and name in value:
                yield from named_tables(option.kind, value[name], isolated)


def requirements(offers: Iterable[Offer]) -> list[str]:
    """Return the packages that those of components require, as their metadata say; the core's are known."""
    packages = {offer.package for offer in offers if not _elsewhere(offer)} - {"evidcore"}
    return sorted({n for package in packages for n in _required(package) if not n.startswith("evidcore")})


def built_on(offers: Iterable[Offer]) -> set[str]:
    """Return the packages of ours that those of components require, however indirectly: their code counts."""
    result: set[str] = set()
    waiting = {offer.package for offer in offers if not _elsewhere(offer)} - {"evidcore"}
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
    if count := torch.cuda.device_count():
        result["gpus"] = [torch.cuda.get_device_name(number) for number in range(count)]
    return result


INPUTS = "inputs.json"  # of a stage folder
Hashes = Mapping[str, str]  # of the stages that wrote a checkpoint: "encoder", "model", "service.<name>"


def hashed_inputs(
    assembly: Assembly, stage: Stage, lock: Mapping[str, Any], upstream: Hashes
) -> dict[str, Any]:
    """Return everything a stage's result depends on.

    A stage says which tables of the model and which earlier outputs it depends on. What is measured on (data
    sets, tasks) counts where it is used. The stage's place in the recipe does not, and the stages below it do
    not. Code counts as the core and the packages of its components, each as a whole.

    `upstream` holds hashes of the stages whose results it starts from.
    """
    recipe = assembly.recipe
    table = {key: value for key, value in stage_table(stage).items() if key != "arm"}
    tasks = {use.task: recipe.tasks[use.task] for use in stage.data_uses() if use.task}
    datasets = {use.dataset: recipe.datasets[use.dataset] for use in stage.data_uses()}
    services = named_services(recipe, table, tasks)
    needs = stage.depends_on(Context(assembly, stage.label), upstream)
    model = dict(needs.model)
    unread = {f"service.{name}" for name in recipe.services if name not in services}
    started_from = {key: value for key, value in needs.upstream.items() if key not in unread}
    components = [
        *(pair for value in tasks.values() for pair in named_tables("task", value)),
        *(pair for kind, value in model.items() for pair in named_tables(kind, value)),
        *(pair for value in services.values() for pair in named_tables(str(value["kind"]), value)),
        *stage_tables(stage, recipe),
    ]
    sources = [pair for value in datasets.values() for pair in named_tables("dataset", value)]
    offers = [offer for offer, _ in sources + components]
    code = {CORE: package_hash(CORE), **{_package(offer): offer_hash(offer) for offer in offers}}
    code |= {name: package_hash(name.replace("-", "_")) for name in sorted(built_on(offers))}
    result = {
        "stage": table,
        "seed": recipe.seed,
        "threads": recipe.threads,
        "dataset": {name: {**value, **lock["dataset"][name]} for name, value in datasets.items()},
        "task": tasks,
        "model": model,
        "service": services,
        "words": _words(assembly, needs.words, lock),
        "upstream": started_from,
        "code": code,
        "versions": versions() | versions(requirements(offers)),
        "files": dict(_files(recipe.folder, components)),  # a data set's are in its fingerprint
    }
    if apart := {offer.package: facts["versions"] for offer in offers if (facts := _elsewhere(offer))}:
        result["environments"] = apart
    if "bridge" in model and recipe.features.precision != "float32":
        result["features"] = recipe.features.precision
    if rounded := [part for part in recipe.model.bfloat16 if part in model]:
        model["bfloat16"] = rounded
    if recipe.model.load_in_4bit and "language" in model:
        model["load_in_4bit"] = versions(["bitsandbytes"])
    labels = {name for dataset in datasets for name in assembly.datasets[dataset].findings}
    if labels != {*assembly.phrases} and any(_may_label(offer) for offer, _ in components):
        result["findings"] = list(assembly.phrases)
    return result


def _files(folder: Path, components: list[tuple[Offer, Mapping[str, Any]]]) -> Iterator[tuple[str, str]]:
    """Yield the files and folders that options name, with hashes of their content."""
    for offer, table in components:
        if "recipe_folder" in inspect.signature(offer.load()).parameters:
            for value in _strings(table):
                place = folder / value
                if value and place.is_file():
                    yield value, file_hash(place)
                elif value and place.is_dir():
                    yield value, folder_hash(place)


def _may_label(offer: Offer) -> bool:
    """Tell whether a component looks for the findings of the data sets, or has a labeler that may."""
    made = offer.load()
    kinds = {option.kind for option in options(made).values()}
    return "vocabulary" in inspect.signature(made).parameters or "labeler" in kinds


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _strings(item)


def named_services(recipe: Recipe, table: Mapping[str, Any], tasks: Mapping[str, Any]) -> dict[str, Any]:
    """Return the services that a stage or its tasks name, and those that these name."""
    result: dict[str, Any] = {}
    waiting: list[Any] = [table, tasks]
    while waiting:
        for value in _strings(waiting.pop()):
            name = value.removeprefix("service.")  # a fit stage names its component so
            if name in recipe.services and name not in result:
                result[name] = recipe.services[name]
                waiting.append(result[name])
    return result


def unfitted_readers(assembly: Assembly) -> Iterator[tuple[str, str, Reader]]:
    """Yield the stage, the service and the reader wherever a stage names one that no stage above it fits."""
    recipe, fitted = assembly.recipe, set[str]()
    for index, stage in enumerate(recipe.stages):
        tasks = {use.task: recipe.tasks[use.task] for use in stage.data_uses() if use.task}
        for name in named_services(recipe, stage_table(stage), tasks):
            service = assembly.services[name]
            if isinstance(service, Reader) and f"service.{name}" not in {*fitted, stage.output}:
                yield recipe.stage_name(index), name, service
        fitted.add(stage.output or "")


def _words(assembly: Assembly, source: str, lock: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a counted vocabulary is counted in, beside the stage's own data."""
    recipe = assembly.recipe
    if not source or not assembly.language.counts_words:
        return {}  # a pretrained tokenizer knows its words, and a trained one lies beside the weights
    datasets = {name: {**table, **lock["dataset"][name]} for name, table in recipe.datasets.items()}
    if source == "phrases":
        return {"dataset": datasets}
    counted = [dataclasses.asdict(use) for use in assembly.word_sources()]
    return {"dataset": datasets, "task": recipe.tasks, "data": counted}


def inputs_hash(inputs: Mapping[str, Any], salt: str = "") -> str:
    """Return the hash of a stage's inputs; `salt` keeps a `--fresh` run's stages apart."""
    text = json.dumps({**inputs, "salt": salt}, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def as_json(inputs: Mapping[str, Any]) -> str:
    """Return what a stage folder holds of its inputs."""
    return json.dumps(inputs, indent=1, default=str) + "\n"


def after(stage: Stage, key: str, upstream: Hashes) -> dict[str, str]:
    """Return the hashes of the outputs after a stage."""
    return dict(upstream) if stage.output is None else {**upstream, stage.output: key}
