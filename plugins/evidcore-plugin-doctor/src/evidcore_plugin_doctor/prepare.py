"""Fill the cache for the data of a recipe: its volumes, and what its encoder is given of them.

Order of events: every data set lists its cases; what the view shows of each is worked out; worker processes
read and prepare case after case. Each entry appears in one move and is found again by content, so a fill that
was killed goes on where it stopped, and several machines fill one cache folder, each its share.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import cast, get_args

import torch

from evidcore.case import Case, Split, VisualPart
from evidcore.contracts import EncoderInput
from evidcore.errors import DataError, RecipeError, did_you_mean
from evidcore.recipe import Recipe
from evidcore.registry import blame
from evidcore.registry.factory import offer_of
from evidcore.runs import model as models
from evidcore.runs.assembly import Assembly
from evidcore.runs.model import StageOutputs
from evidcore_plugin_doctor.cache_filling import Filled, Filler, Outcome, Wanted
from evidcore_plugin_doctor.workers import in_processes

SPLITS = cast(tuple[Split, ...], get_args(Split))


@dataclasses.dataclass
class Summary:
    """What became of the cases so far."""

    outcomes: dict[Outcome, int] = dataclasses.field(
        default_factory=lambda: dict.fromkeys(get_args(Outcome), 0)
    )
    left_out: dict[str, str] = dataclasses.field(default_factory=dict)  # dataset/split/case -> why
    unlisted: tuple[str, ...] = ()  # what in the data sets' tables cannot be read as a case or a part of one
    size_bytes: int = 0  # written
    deleted_bytes: int = 0  # older entries that made room
    seconds: float = 0.0

    def add(self, filled: Filled) -> None:
        """Count a case."""
        self.outcomes[filled.outcome] += 1
        self.size_bytes += filled.size_bytes
        self.deleted_bytes += filled.deleted_bytes
        if filled.outcome == "left_out":
            self.left_out[filled.case] = filled.reason


def fill(
    recipe: Recipe,
    *,
    datasets: Sequence[str] = (),
    splits: Sequence[Split] = (),
    processes: int = 1,
    shard: tuple[int, int] = (1, 1),
    keeps_volumes: bool = True,
    told: Callable[[int, int], None] = lambda done, count: None,
) -> Summary:
    """Fill the cache for a recipe's data.

    Args:
        recipe: names the data sets, the encoder and the view.
        datasets: which of them; empty: all.
        splits: which of theirs; empty: all.
        processes: how many read at once.
        shard: which share of the cases, and of how many, from 1 on.
        keeps_volumes: keep the volumes too, not only what the encoder is given.
        told: called after each case with how many are done, of how many.

    Raises:
        RecipeError: if the recipe names no such data set.
        DataError: if there are no cases.
        RunError: if the disk is full, or a process was killed.
    """
    began_s = time.time()
    assembly = Assembly(recipe)
    unknown = next((name for name in datasets if name not in assembly.datasets), None)
    if unknown is not None:
        raise RecipeError(
            f"{recipe.path}: no dataset is called {unknown!r}.{did_you_mean(unknown, assembly.datasets)} "
            f"It names: {', '.join(assembly.datasets)}."
        )
    names, splits = tuple(datasets) or tuple(assembly.datasets), tuple(splits) or SPLITS
    cases = list(_cases(assembly, names, splits))
    if not cases:
        raise DataError(
            f"{recipe.path}: the {', '.join(splits)} splits of {', '.join(names)} hold no cases to prepare. "
            f"Check the tables."
        )
    own = cases[shard[0] - 1 :: shard[1]]
    with torch.device("meta"):
        encoder = models.encoder(assembly, StageOutputs())
    summary = Summary(unlisted=tuple(_unlisted(assembly, names)))
    filler = Filler(spec=encoder.input, keeps_volumes=keeps_volumes, began_s=began_s)
    wanted = (_wanted(assembly, encoder.input, name, case) for name, case in own)
    killed = (
        f"one of {processes} processes was killed, perhaps for want of memory. What is done is kept: "
        f"give the command again with fewer --processes."
    )
    for done, filled in enumerate(in_processes(filler, wanted, processes, killed), start=1):
        summary.add(filled)
        told(done, len(own))
    summary.seconds = time.time() - began_s
    return summary


def _cases(
    assembly: Assembly, names: Sequence[str], splits: Sequence[Split]
) -> Iterator[tuple[str, Case | str]]:
    """Yield every case with its full name, or why it is left out."""
    for name in names:
        source = assembly.datasets[name]
        seen: Counter[str] = Counter()
        for split in splits:
            with blame(offer_of(source), f"listing the cases of {name}, {split}"):
                listed = list(source.listed(split))
            for case in listed:
                seen[case.id] += 1
                if seen[case.id] == 1:
                    yield f"{name}/{split}/{case.id}", case
                else:
                    yield f"{name}/{split}/{case.id} ({seen[case.id]})", _twice(case)
            left_out = source.left_out.get(split, {})
            for case_id in sorted(left_out.keys() - {case.id for case in listed}):
                yield f"{name}/{split}/{case_id}", left_out[case_id]


def _twice(case: Case) -> str:
    return f"its id {case.id!r} is that of another case of the data set. Give each an id of its own."


def _unlisted(assembly: Assembly, names: Sequence[str]) -> Iterator[str]:
    """Yield what the data sets' tables hold that is no case or part of one."""
    for name in names:
        source = assembly.datasets[name]
        with blame(offer_of(source), f"reading the tables of {name}"):
            yield from (f"{name}: {message}" for message in source.unlisted())


def _wanted(assembly: Assembly, spec: EncoderInput, name: str, case: Case | str) -> Wanted:
    """Work out what the view shows of a case."""
    if isinstance(case, str):
        return Wanted(case=name, volumes=(), shown=(), fault=case)
    if not case.volumes:
        fault = "the case names no volume. Name its file in the data set's table, or take the case out."
        return Wanted(case=name, volumes=(), shown=(), fault=fault)
    try:
        with blame(offer_of(assembly.view), f"rendering case {case.id!r}"):
            shown = [part for part in assembly.view.render(case) if isinstance(part, VisualPart)]
            sized = tuple((part.crop, assembly.view.size_zyx(part, spec)) for part in shown)
    except DataError as cause:
        return Wanted(case=name, volumes=(), shown=(), fault=str(cause))
    return Wanted(case=name, volumes=case.volumes, shown=sized)
