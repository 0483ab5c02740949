"""What a recipe will need, before it is run: parameters, memory, downloads, and how long it will take."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evidcore.contracts import Workload
from evidcore.errors import RecipeError
from evidcore.recipe import Recipe
from evidcore.registry import card, watch
from evidcore.runs import model as models
from evidcore.runs.assembly import Assembly
from evidcore.runs.context import Context
from evidcore.runs.dry_run import answering
from evidcore.runs.lock import has_isolated, used
from evidcore.runs.record import read_lines
from evidcore_plugin_lab.plan.kept_features import KeptFeatures, kept_features
from evidcore_plugin_lab.plan.lengths import Lengths, lengths
from evidcore_plugin_lab.plan.memory import Memory, Precision
from evidcore_plugin_lab.plan.needs import earlier_ranks, memory, state_bytes, uses_whole_model
from evidcore_plugin_lab.plan.network_use import fetched, sent
from evidcore_plugin_lab.plan.shapes import shapes
from evidcore_plugin_lab.plan.throughput import Throughput


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlannedStage:
    """One line of the plan."""

    stage: str
    work: str  # "500 steps of 12 prompts x 8 answers"
    trained: int | None  # parameters; None: not known before a download
    lengths: Lengths | None  # of its rows; None: it asks nothing
    memory: Mapping[Precision, Memory] | None  # None: not known before a download, or a component's own
    state_bytes: int | None  # weights, gradients and AdamW's moments alone
    earlier_s: float | None  # how long this stage took in the newest earlier run here
    expected_s: float | None  # from measured throughput


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What a recipe will need."""

    parameters: Mapping[str, int | None]  # by part of the model
    stages: tuple[PlannedStage, ...]
    features: KeptFeatures | None  # None: no stage has a frozen encoder
    packages: Mapping[str, Mapping[str, Any]]  # cards of every package in use
    downloads: tuple[str, ...]
    sends: tuple[str, ...]  # what leaves this machine, and where to
    network_blocked: bool | None  # to isolated components, None where there are none


def plan(recipe: Recipe, runs: Path, throughput: Throughput | None = None, processes: int = 1) -> Plan:
    """Work out a plan. Builds the model's shapes; loads no weights and downloads nothing.

    Args:
        recipe: what would run.
        runs: where earlier runs lie, for their times.
        throughput: what was measured where it would run.
        processes: that would run it together, each on a device of its own.

    Raises:
        RecipeError: if the prompts or rows of a step cannot be dealt to them.
    """
    assembly = Assembly(recipe)
    made = shapes(assembly)
    tokenizer = assembly.language.tokenizer(assembly.corpus)
    processor = None if tokenizer is None else models.processor(assembly, tokenizer, made.encoder)
    offers = used(recipe)
    cards: dict[str, Mapping[str, Any]] = {
        offer.package: {"version": offer.version, **card(offer.package)} for offer in offers
    }
    stages, ranks = [], earlier_ranks(recipe)
    for index, (stage, trained_by) in enumerate(zip(recipe.stages, answering(recipe), strict=True)):
        name, load = recipe.stage_name(index), stage.workload()
        strategy = None if trained_by is None else trained_by.strategy(Context(assembly, name))
        asks = all(use.task for use in stage.data) and uses_whole_model(load)
        _check_dealt(name, load, processes)
        rows = None
        if asks and made.text is not None:
            rows = lengths(assembly, made, processor, stage, strategy)
        expected = (
            None if throughput is None or rows is None else throughput.seconds(stage.kind, load, made, rows)
        )
        stages.append(
            PlannedStage(
                stage=name,
                work=load.text,
                trained=made.trained(load),
                lengths=rows,
                memory=None
                if rows is None
                else memory(
                    made,
                    load,
                    rows,
                    earlier_rank=ranks[index],
                    processes=processes,
                    is_sharded=bool(getattr(stage, "trl", {}).get("fsdp")),
                ),
                state_bytes=state_bytes(made, load),
                earlier_s=_earlier(name, runs / recipe.name),
                expected_s=expected,
            )
        )
    return Plan(
        parameters=made.parameters, stages=tuple(stages), features=kept_features(assembly, made),
        packages=cards, downloads=tuple(fetched(assembly, cards)), sends=tuple(sent(recipe)),
        network_blocked=_is_network_blocked(recipe),
    )  # fmt: skip


def _is_network_blocked(recipe: Recipe) -> bool | None:
    """Tell whether isolated components reach no network here, None where there are none."""
    if not has_isolated(recipe):
        return None
    return bool(watch("isolation", "`isolated`").network_blocked())


def _check_dealt(stage: str, load: Workload, processes: int) -> None:
    together = load.prompts_per_forward * processes
    if load.trains_whole_model and load.prompts_per_step % together:
        raise RecipeError(
            f"{stage}: {load.prompts_per_step} prompts or rows of a step cannot be dealt to {processes} "
            f"processes with {load.prompts_per_forward} in a pass; take a multiple of {together}."
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
