"""What a recipe will need, before it is run: parameters, memory, downloads, and how long it took before."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from evidcore.api import Stage, VisualPart, find
from evidcore.cache import cache_folder, limit_bytes
from evidcore.errors import NotDownloadedError, RecipeError
from evidcore.evaluate import bootstrap
from evidcore.evaluate.reference_lines import cluster_of
from evidcore.model.architecture import shipped
from evidcore.recipe import Recipe
from evidcore.registry import card, downloads, watch
from evidcore.runs.assembly import Assembly
from evidcore.runs.context import Context
from evidcore.runs.dry_run import answering, is_fetched, tables
from evidcore.runs.folder import read_lines
from evidcore.runs.inputs import has_isolated, used
from evidcore_plugin_lab.plan.lengths import Lengths, lengths
from evidcore_plugin_lab.plan.memory import Memory, Precision
from evidcore_plugin_lab.plan.needs import (
    earlier_adapters,
    encoding_operations,
    memory,
    state_bytes,
    uses_whole_model,
)
from evidcore_plugin_lab.plan.shapes import Shapes, shapes

CENTRE_BYTES = 3 * 4  # of a patch; on disk they lie beside its features


@dataclasses.dataclass(frozen=True, kw_only=True)
class KeptFeatures:
    """The features of all volumes that stages show to a frozen encoder."""

    volumes: int | None  # None: the data are not here
    volume_bytes: int  # of the largest; where the data are not here, of one usual input
    in_memory: int  # volumes that the bound leaves room for
    on_disk: int
    volume_s: float  # of this machine's CPU, to encode the largest, were it all products of matrices

    @property
    def room(self) -> int:
        """Return how many volumes need not be encoded again."""
        return max(self.in_memory, self.on_disk)


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
    power: str  # which differences its answers would miss; "" where it trains, or the data are not here


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


def plan(recipe: Recipe, runs: Path, processes: int = 1) -> Plan:
    """Work out a plan. Builds the model's shapes; loads no weights and downloads nothing.

    Earlier runs lie in `runs`, for their times; each of the `processes` would have a device of its own.
    """
    assembly = Assembly(recipe)
    made = shapes(assembly)
    offers = used(recipe)
    cards: dict[str, Mapping[str, Any]] = {
        offer.package: {"version": offer.version}
        | (card(offer.package) if offer.apart is None else offer.apart.card())
        for offer in offers
    }
    stages, earlier = [], earlier_adapters(recipe)
    for index, (stage, trained_by) in enumerate(zip(recipe.stages, answering(recipe), strict=True)):
        name, load = recipe.stage_name(index), stage.workload()
        strategy = None if trained_by is None else trained_by.strategy(Context(assembly, name))
        together = load.prompts_per_forward * processes
        if load.trains_whole_model and load.prompts_per_step % together:
            raise RecipeError(
                f"{name}: {load.prompts_per_step} prompts or rows of a step cannot be dealt to {processes} "
                f"processes with {load.prompts_per_forward} in a pass; take a multiple of {together}."
            )
        rows, needed = None, None
        if all(use.task for use in stage.data) and uses_whole_model(load) and made.text is not None:
            rows = lengths(assembly, made, stage, strategy)
            is_sharded = bool(getattr(stage, "trl", {}).get("fsdp"))
            needed = memory(
                made, load, rows, earlier=earlier[index], processes=processes, is_sharded=is_sharded
            )
        stages.append(
            PlannedStage(
                stage=name, work=load.text, trained=made.trained(load), lengths=rows, memory=needed,
                state_bytes=state_bytes(made, load), earlier_s=_earlier(name, runs / recipe.name),
                power="" if load.train else power(assembly, stage),
            )
        )  # fmt: skip
    blocked = bool(watch("isolation", "`isolated`").network_blocked()) if has_isolated(recipe) else None
    return Plan(
        parameters=made.parameters, stages=tuple(stages), features=kept_features(assembly, made),
        packages=cards, downloads=tuple(fetched(assembly, cards)), sends=tuple(sent(recipe)),
        network_blocked=blocked,
    )  # fmt: skip


def power(assembly: Assembly, stage: Stage) -> str:
    """Say what 80 of 100 such sets would find, of two ways to answer that differ in every second question."""
    try:
        prompts = [prompt for use in stage.data if use.task for prompt in assembly.prompts(use)]
    except NotDownloadedError:
        return ""
    patients = len({cluster_of(prompt) for prompt in prompts})
    asked = f"{len(prompts)} questions about {patients} patients"
    if patients < bootstrap.FEWEST_PATIENTS:
        return f"{asked}: too few patients for an interval or a verdict" if prompts else ""
    one = bootstrap.detectable(0.5**0.5, degrees_of_freedom=patients - 1) or 0.0
    low, high = (f"{100 * one / count**0.5:.0f}" for count in (len(prompts), patients))
    return (
        f"{asked}: differences below {low} points would be missed, below {high} where a patient's are alike"
    )


def kept_features(assembly: Assembly, made: Shapes) -> KeptFeatures | None:
    """Return what the features take; None where no stage has a frozen encoder.

    Volumes are counted as the view shows them, as many of each case as of the first of its data entry.
    """
    recipe, view = assembly.recipe, assembly.view
    loads = [(stage, stage.workload()) for stage in recipe.stages]
    frozen = [stage for stage, load in loads if "encoder" not in load.train and uses_whole_model(load)]
    uses = dict.fromkeys(use for stage in frozen for use in stage.data_uses())
    if not uses:
        return None
    shown: dict[tuple[str, str], int] = {}  # volumes by data set and case
    largest, size, volumes = 0, made.encoder.input.size_zyx, None
    try:
        for use in uses:
            cases = assembly.cases(use)
            parts = [part for part in view.render(cases[0]) if isinstance(part, VisualPart)]
            sizes = [view.size_zyx(part, made.encoder.input) for part in parts]
            largest, size = max([(largest, size), *((math.prod(made.encoder.grid(it)), it) for it in sizes)])
            shown |= {(use.dataset, case.id): len(parts) for case in cases}
        volumes = sum(shown.values())
    except NotDownloadedError:
        largest = math.prod(made.patch_grid_zyx)
    if not largest:  # nothing is shown
        return None
    kept = recipe.features
    features_bytes = largest * made.encoder.width * (2 if kept.precision == "float16" else 4)
    volume_bytes = features_bytes + largest * CENTRE_BYTES
    return KeptFeatures(
        volumes=volumes,
        volume_bytes=volume_bytes,
        in_memory=int(kept.memory_gb * 1e9) // features_bytes,
        on_disk=limit_bytes(cache_folder(), 0) // volume_bytes,
        volume_s=sum(count / products_per_s(kind) for kind, count in encoding_operations(made, size).items()),
    )


def products_per_s(dtype: torch.dtype) -> float:
    """Return how many additions and multiplications of a product of matrices a second of the CPU does."""
    matrix, repeats = torch.rand(512, 512).to(dtype), 8
    _ = matrix @ matrix  # the first one loads the kernel
    started = time.process_time()
    for _ in range(repeats):
        _ = matrix @ matrix
    return repeats * 2 * 512**3 / (time.process_time() - started)


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
    if missing := Context(assembly, "plan").encoder().missing_weights():
        yield f"model.encoder, {missing}"


def sent(recipe: Recipe) -> Iterator[str]:
    """Yield what leaves this machine, and where to."""
    for where, table in tables(recipe):
        for what, key in (("texts", "sends_text_away"), ("images", "sends_images_away")):
            if table.get(key) is True and "url" in table:
                key = f" with the key in {table['key_env']}" if table.get("key_env") else ""
                yield f"{what} of {', '.join(recipe.datasets)}, to {table['url']}{key} ({where})"
    for name in recipe.observers:
        if says := getattr(find("observer", name).load(), "sends_away", ""):
            yield f"{says} (observer {name!r})"


def _earlier(stage: str, runs: Path) -> float | None:
    """Return the seconds between a stage's first and last step in the newest run that has trained it."""
    for folder in sorted(runs.glob("*-*/metrics.jsonl"), reverse=True):
        times = [
            line["time_s"] for line in read_lines(folder) if line["stage"] == stage and not line.get("reused")
        ]
        if len(times) > 1:
            return round(float(times[-1] - times[0]), 1)
    return None
