"""What a stage's result depends on, and its hash, by which a finished stage is used again."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from evidcore.contracts import Reader, Stage
from evidcore.data import file_hash
from evidcore.recipe import Recipe
from evidcore.recipe.resolve import stage_table
from evidcore.registry import Offer
from evidcore.registry.factory import options
from evidcore.runs.assembly import Assembly
from evidcore.runs.code import CORE, offer_hash, package_hash
from evidcore.runs.context import Context
from evidcore.runs.lock import built_on, named_tables, requirements, stage_tables, versions

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
    code = {CORE: package_hash(CORE), **{offer.package: offer_hash(offer) for offer in offers}}
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
    if "bridge" in model and recipe.features.precision != "float32":
        result["features"] = recipe.features.precision
    if rounded := [part for part in recipe.model.bfloat16 if part in model]:
        result["model"] = {**model, "bfloat16": rounded}
    own = {name for dataset in datasets for name in assembly.datasets[dataset].findings}
    if own != {*assembly.phrases} and any(_may_label(offer) for offer, _ in components):
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
                    inner = sorted(path for path in place.rglob("*") if path.is_file())
                    listed = [f"{path.relative_to(place).as_posix()} {file_hash(path)}" for path in inner]
                    yield value, hashlib.sha256("\n".join(listed).encode()).hexdigest()


def _may_label(offer: Offer) -> bool:
    """Tell whether a component looks for the findings of the data sets, or has a labeler that may."""
    made = offer.load()
    kinds = {option.kind for option in options(made).values()}
    return "vocabulary" in inspect.signature(made).parameters or "labeler" in kinds


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
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
