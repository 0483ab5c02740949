"""What a recipe will need, before it is run: parameters, memory, downloads, and how long it took before."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from evidcore.model.language import load_language
from evidcore.plugins import card
from evidcore.recipe import Fit, Grpo, Recipe, Sft, Stage
from evidcore.recipe.resolve import stage_table
from evidcore.run import model as models
from evidcore.run.lock import used
from evidcore.run.model import Standing
from evidcore.run.parts import build
from evidcore.run.record import read_lines

_BYTES = 4  # float32


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlannedStage:
    """One line of the plan."""

    stage: str
    work: str  # "500 steps of 12 prompts x 8 answers"
    trained: int | None  # parameters; None: not known before a download
    memory_gb: float | None  # weights, gradients and optimizer state; activations come on top
    earlier_s: float | None  # how long this stage took in the newest earlier run here


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What a recipe will need."""

    parameters: Mapping[str, int | None]  # by part of the model
    stages: tuple[PlannedStage, ...]
    packages: Mapping[str, Mapping[str, Any]]  # cards of every package in use
    downloads: tuple[str, ...]
    sends: tuple[str, ...]  # what leaves this machine, and where to


def plan(recipe: Recipe, runs: Path) -> Plan:
    """Work out a plan. Builds encoder and bridge; loads no weights and downloads nothing.

    Args:
        recipe: what would run.
        runs: where earlier runs lie, for their times.
    """
    parts = build(recipe)
    encoder = models.encoder(parts, Standing())
    language, width = _language(parts)
    bridge = models.bridge(parts, encoder, width)
    sizes = {"encoder": _size(encoder), "bridge": _size(bridge), "language": language}
    offers = used(recipe)
    cards: dict[str, Mapping[str, Any]] = {
        offer.package: {"version": offer.version, **card(offer.package)} for offer in offers
    }
    downloads = [
        f"{item} ({package})" for package, table in cards.items() for item in table.get("downloads", ())
    ]
    source = recipe.model.language
    if source.id:
        downloads.append(
            f"{source.id} at {source.revision}, from the Hugging Face Hub (see its page for the licence)"
        )
    downloads += [
        f"{table['id']} at {table['revision']}, from the Hugging Face Hub, for {where}"
        for where, table in _tables(recipe)
        if table.get("id") and table.get("revision")
    ]
    stages = tuple(
        _stage(recipe.stage_name(place), stage, sizes, runs / recipe.name)
        for place, stage in enumerate(recipe.stages)
    )
    sends = tuple(
        f"texts of {', '.join(recipe.datasets)}, to {table['url']} ({where})"
        for where, table in _tables(recipe)
        if table.get("sends_text_away") is True and "url" in table
    )
    return Plan(parameters=sizes, stages=stages, packages=cards, downloads=tuple(downloads), sends=sends)


def _tables(recipe: Recipe) -> Iterator[tuple[str, Mapping[str, Any]]]:
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


def _language(parts: Any) -> tuple[int | None, int]:
    """Return the language model's parameters, if they can be known without a download, and its width."""
    source = models.language_source(parts, Standing())
    width = models.text_width(parts)
    if width is None:
        return None, 64  # not downloaded yet; the bridge is counted at this width
    if "config" not in source:
        config = AutoConfig.from_pretrained(
            source.get("folder") or source["id"], revision=source.get("revision"), local_files_only=True
        )
        with torch.device("meta"):
            return _size(AutoModelForCausalLM.from_config(config)), width
    model, _ = load_language(source, texts=models.texts(parts), phrases=parts.findings)
    return _size(model), width


def _size(module: Any) -> int:
    return sum(weight.numel() for weight in module.parameters())


def _stage(name: str, stage: Stage, sizes: Mapping[str, int | None], runs: Path) -> PlannedStage:
    table = stage_table(stage)
    whole = None if None in sizes.values() else sum(size or 0 for size in sizes.values())
    trained: int | None = 0
    if isinstance(stage, Fit):
        steps = table["options"].get("steps")
        work = f"fit {stage.component}" + (f", {steps} steps" if steps else "")
        trained = whole = sizes.get(stage.component.removeprefix("model."))
    elif isinstance(stage, Sft):
        work = f"{stage.steps} steps of {stage.rows_per_step} rows"
    elif isinstance(stage, Grpo):
        work = f"{stage.steps} steps of {stage.prompts_per_step} prompts x {stage.answers_per_prompt} answers"
    else:
        work = ", ".join(f"{use.task} on {use.dataset} {use.split}" for use in stage.data)
    if isinstance(stage, Sft | Grpo):
        chosen = [sizes[part] for part in stage.train]
        trained = None if None in chosen else sum(size or 0 for size in chosen)
        if stage.lora is not None:
            trained, work = None, f"{work}, LoRA of rank {stage.lora.rank}"
    memory = None
    if whole is not None:
        state = 3 * (trained or 0)  # gradients and Adam's two moments
        reference = whole if isinstance(stage, Grpo) and table["trl"].get("beta") else 0
        memory = round((whole + state + reference) * _BYTES / 1e9, 3)
    return PlannedStage(
        stage=name, work=work, trained=trained, memory_gb=memory, earlier_s=_earlier(name, runs)
    )


def _earlier(stage: str, runs: Path) -> float | None:
    """Return the seconds between a stage's first and last step in the newest run that has trained it."""
    for folder in sorted(runs.glob("*-*/metrics.jsonl"), reverse=True):
        times = [
            line["time_s"] for line in read_lines(folder) if line["stage"] == stage and not line.get("reused")
        ]
        if len(times) > 1:
            return round(float(times[-1] - times[0]), 1)
    return None
