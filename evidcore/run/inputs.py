"""What a stage's result depends on, as one hash: equal hashes mean that the result can be used again."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from evidcore.recipe import Audit, Evaluate, Fit, Recipe, Stage, data_uses
from evidcore.recipe.resolve import stage_table
from evidcore.run import model as models
from evidcore.run.code import CORE, core_hash, offer_hash, top_module
from evidcore.run.lock import MEASURING, named, stage_offers, versions
from evidcore.run.parts import Parts

_MODEL = ("evidcore.model.assemble", "evidcore.model.language", "evidcore.model.policy")
_MODULES: Mapping[str, tuple[str, ...]] = {  # of the core, that a stage of this kind calls
    "fit": ("evidcore.train.fit",),
    "sft": ("evidcore.train.sft", *_MODEL),
    "grpo": ("evidcore.train.grpo", *_MODEL),
    "evaluate": (
        "evidcore.evaluate.choice",
        "evidcore.evaluate.report",
        "evidcore.evaluate.segmentation",
        "evidcore.evaluate.thinking",
        "evidcore.evaluate.probe",
        *_MODEL,
    ),
    "audit": ("evidcore.audit.policy", "evidcore.audit.segmentation", *_MODEL),
}
# between recipe and stage: which cases, which settings. They import every stage, so they count alone
_BETWEEN = ("evidcore.run.model", "evidcore.run.parts", "evidcore.run.stages")
Hashes = Mapping[
    str, str
]  # of the stages that wrote what stands: "encoder", "language", "model", "service.<name>"


def hashed_inputs(parts: Parts, stage: Stage, lock: Mapping[str, Any], upstream: Hashes) -> dict[str, Any]:
    """Return everything a stage's result depends on, with what only the built parts can tell."""
    return stage_inputs(parts.recipe, stage, lock, upstream, image_tokens=_image_tokens(parts, stage))


def planned_inputs(parts: Parts, lock: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the inputs of every stage of a recipe, by stage name, without running any."""
    found: dict[str, dict[str, Any]] = {}
    upstream: Hashes = {}
    for place, stage in enumerate(parts.recipe.stages):
        inputs = hashed_inputs(parts, stage, lock, upstream)
        found[parts.recipe.stage_name(place)] = inputs
        upstream = after(stage, inputs_hash(inputs), upstream)
    return found


def stage_inputs(
    recipe: Recipe,
    stage: Stage,
    lock: Mapping[str, Any],
    upstream: Hashes,
    *,
    image_tokens: int | None = None,
) -> dict[str, Any]:
    """Return everything a stage's result depends on.

    A fit depends on its component alone; that of the language model also on the view and on how many tokens
    the bridge gives, whatever encoder and bridge they come from. Everything else depends on the whole model
    and on the services that it names. What is measured on (data sets, tasks) counts where it is used. The
    stage's place in the recipe does not, and the stages below it do not.

    Args:
        recipe: the whole recipe.
        stage: one of its stages.
        lock: the tables of lock.toml.
        upstream: hashes of the stages whose results it starts from.
        image_tokens: how many embeddings stand for a visual part; only a fit of the language model asks.
    """
    table = stage_table(stage)
    tasks = {use.task: recipe.tasks[use.task] for use in data_uses(stage) if use.task}
    datasets = {use.dataset: recipe.datasets[use.dataset] for use in data_uses(stage)}
    services = _services(recipe, table, tasks)
    model: dict[str, Any] = {
        "encoder": recipe.model.encoder,
        "bridge": recipe.model.bridge,
        "view": recipe.model.view,
    }
    is_language = isinstance(stage, Fit) and stage.component == "model.language"
    if is_language:
        model = {"view": recipe.model.view, "image_tokens": image_tokens}
    elif isinstance(stage, Fit):
        section, _, name = stage.component.partition(".")
        model = {name: recipe.model.encoder} if section == "model" else {}
    unread = {f"service.{name}" for name in recipe.services if name not in services}
    is_fit = isinstance(stage, Fit)
    started_from = {key: value for key, value in upstream.items() if not is_fit and key not in unread}
    if is_language or not isinstance(stage, Fit):
        model["language"] = {key: value for key, value in vars(recipe.model.language).items() if value}
    offers = [
        *(offer for value in datasets.values() for offer in named("dataset", value)),
        *(offer for value in tasks.values() for offer in named("task", value)),
        *(offer for kind, value in model.items() if kind != "language" for offer in named(kind, value)),
        *(offer for value in services.values() for offer in named(str(value["kind"]), value)),
        *stage_offers(table),
    ]
    code = {offer.package: offer_hash(offer) for offer in offers if top_module(offer) != CORE}
    modules = (*_MODULES[stage.kind], "evidcore.model.text_fit") if is_language else _MODULES[stage.kind]
    between = (*_BETWEEN, "evidcore.run.measuring") if isinstance(stage, Evaluate | Audit) else _BETWEEN
    code[CORE] = core_hash(offers, modules, alone=between)
    return {
        "stage": table,
        "seed": recipe.seed,
        "dataset": {name: {**value, **lock["dataset"][name]} for name, value in datasets.items()},
        "task": tasks,
        "model": model,
        "service": services,
        "words": _words(recipe, stage, lock, upstream),
        "upstream": started_from,
        "code": code,
        "versions": versions() | (versions(MEASURING) if isinstance(stage, Evaluate) else {}),
        "recipe_folder": str(recipe.folder),
    }


def _image_tokens(parts: Parts, stage: Stage) -> int | None:
    """Return how many embeddings the bridge gives for a visual part, None where the stage does not ask."""
    if not isinstance(stage, Fit) or stage.component != "model.language":
        return None
    return models.image_tokens(parts, stage.data[0], models.text_width(parts) or 0)


def _services(recipe: Recipe, table: Mapping[str, Any], tasks: Mapping[str, Any]) -> dict[str, Any]:
    """Return the services that a stage or its tasks name, and those that these name."""
    found: dict[str, Any] = {}
    waiting: list[Any] = [table, tasks]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            waiting += value.values()
        elif isinstance(value, list | tuple):
            waiting += value
        elif isinstance(value, str):
            name = value.removeprefix("service.")  # a fit stage names its component so
            if name in recipe.services and name not in found:
                found[name] = recipe.services[name]
                waiting.append(found[name])
    return found


def _words(recipe: Recipe, stage: Stage, lock: Mapping[str, Any], upstream: Hashes) -> dict[str, Any]:
    """Return what the words of a tiny tokenizer are counted in, beside the stage's own data.

    A fit of the language model takes the finding names of all data sets; a stage that starts from a tiny
    model which no stage has fitted takes the training texts of all stages too.
    """
    if not recipe.model.language.config:
        return {}  # a pretrained tokenizer knows its words
    datasets = {name: {**table, **lock["dataset"][name]} for name, table in recipe.datasets.items()}
    if isinstance(stage, Fit):
        return {"dataset": datasets} if stage.component == "model.language" else {}
    if upstream.keys() & {"language", "model"}:
        return {}  # the tokenizer lies beside the weights
    counted = [dataclasses.asdict(use) for use in models.word_sources(recipe)]
    return {"dataset": datasets, "task": recipe.tasks, "data": counted}


def inputs_hash(inputs: Mapping[str, Any], salt: str = "") -> str:
    """Return the hash of a stage's inputs; `salt` keeps a `--fresh` run's stages apart."""
    text = json.dumps({**inputs, "salt": salt}, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def after(stage: Stage, key: str, upstream: Hashes) -> dict[str, str]:
    """Return the hashes that stand after a stage."""
    if isinstance(stage, Evaluate | Audit):
        return dict(upstream)
    name = stage.component.removeprefix("model.") if isinstance(stage, Fit) else "model"
    return {**upstream, name: key}
