"""Fill the cache for the data of a recipe: its volumes, and what its encoder is given of them.

Order of events: every data set lists its cases; what the view shows of each is worked out; worker processes
read and prepare case after case. Each entry appears in one move and is found again by content, so a fill that
was killed goes on where it stopped, and several machines fill one cache folder, each its share.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from evidcore.api import Case, Crop, DataError, Dataset, EncoderInput, VisualPart, VolumeRef, prepare
from evidcore.case import Split
from evidcore.contracts import Grid
from evidcore.data import read_geometry, volume_cache
from evidcore.data.cached_volume import LEAST_BYTES, VOLUMES
from evidcore.data.content import content_key, volume_key
from evidcore.data.preparation import get_input, put_input
from evidcore.registry import blame
from evidcore.registry.factory import offer_of
from evidcore_plugin_doctor.workers import in_processes

if TYPE_CHECKING:
    from evidcore.recipe import Recipe
    from evidcore.runs.assembly import Assembly

# Of a case: "no_room" where the cache is too full for some of it of what was used since this fill began; else
# "done" where anything was written; else "already_there" where anything was; else "not_needed": volume and
# inputs are small, or no smaller than what they are made of. "left_out" where it cannot be used.
Outcome = Literal["no_room", "done", "already_there", "not_needed", "left_out"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wanted:
    """What is to be kept of one case."""

    case: str
    volumes: tuple[VolumeRef, ...] = ()
    shown: tuple[tuple[Crop, Grid], ...] = ()  # crops, and at what size the encoder is given them
    fault: str = ""  # why the case cannot be shown at all


@dataclasses.dataclass(frozen=True, kw_only=True)
class Filled:
    """What became of one case."""

    case: str
    outcome: Outcome
    size_bytes: int = 0  # written for it
    deleted_bytes: int = 0  # older entries that made room for it
    reason: str = ""  # why it was left out


@dataclasses.dataclass(frozen=True, kw_only=True)
class Summary:
    """What became of the cases."""

    outcomes: dict[Outcome, int]
    left_out: dict[str, str]  # dataset/split/case -> why
    unlisted: tuple[str, ...]  # what in the data sets' tables cannot be read as a case or a part of one
    size_bytes: int  # written
    deleted_bytes: int  # older entries that made room
    seconds: float


def fill(
    recipe: Recipe,
    *,
    only: str | None,
    splits: Sequence[Split],
    processes: int,
    shard: tuple[int, int],
    keeps_volumes: bool,
    progress: Callable[[int, int], None],
) -> Summary:
    """Fill the cache for a recipe's data.

    Of the data sets `only` this one, of the splits those named, if any are. A `shard` is a share of the cases
    from 1 on, and of how many.

    Raises:
        RecipeError: if the recipe has no such data set.
        DataError: if there are no cases.
        RunError: if the disk is full, or a process was killed.
    """
    from evidcore_plugin_tables.target import open_recipe

    from evidcore.runs.assembly import Assembly
    from evidcore.runs.context import Context  # not at the top: worker processes need none of it

    began_s = time.time()
    assembly = Assembly(recipe)
    datasets, splits = open_recipe(recipe, only), tuple(splits) or get_args(Split)
    cases = list(_cases(datasets, splits))
    if not cases:
        where = f"the {', '.join(splits)} splits of {', '.join(datasets)}"
        raise DataError(f"{recipe.path}: {where} hold no cases to prepare. Check the tables.")
    share = cases[shard[0] - 1 :: shard[1]]
    spec = Context(assembly, "prepare").encoder_input
    unlisted: list[str] = []
    for name, source in datasets.items():
        with blame(offer_of(source), f"reading the tables of {name}"):
            unlisted += (f"{name}: {message}" for message in source.unlisted())
    keep = functools.partial(fill_case, spec=spec, keeps_volumes=keeps_volumes, began_s=began_s)
    wanted = (_wanted(assembly, spec, name, case) for name, case in share)
    why = f"one of {processes} processes was killed, perhaps for want of memory"
    killed = f"{why}. What is done is kept: give the command again with fewer --processes."
    filled: list[Filled] = []
    for result in in_processes(keep, wanted, processes, killed):
        filled.append(result)
        progress(len(filled), len(share))
    counts = Counter(result.outcome for result in filled)
    return Summary(
        outcomes={outcome: counts[outcome] for outcome in get_args(Outcome)},
        left_out={result.case: result.reason for result in filled if result.outcome == "left_out"},
        unlisted=tuple(unlisted),
        size_bytes=sum(result.size_bytes for result in filled),
        deleted_bytes=sum(result.deleted_bytes for result in filled),
        seconds=time.time() - began_s,
    )


def _cases(datasets: Mapping[str, Dataset], splits: Sequence[Split]) -> Iterator[tuple[str, Case | str]]:
    """Yield every case with its full name, or why it is left out."""
    for name, source in datasets.items():
        seen: Counter[str] = Counter()
        for split in splits:
            with blame(offer_of(source), f"listing the cases of {name}, {split}"):
                listed = list(source.listed(split))
            for case in listed:
                seen[case.id] += 1
                place, count = f"{name}/{split}/{case.id}", seen[case.id]
                why = f"its id {case.id!r} is that of another case of the data set"
                twice = f"{place} ({count})", f"{why}. Give each an id of its own."
                yield (place, case) if count == 1 else twice
            left_out = source.left_out.get(split, {})
            for case_id in sorted(left_out.keys() - {case.id for case in listed}):
                yield f"{name}/{split}/{case_id}", left_out[case_id]


def _wanted(assembly: Assembly, spec: EncoderInput, name: str, case: Case | str) -> Wanted:
    """Work out what the view shows of a case."""
    if isinstance(case, str):
        return Wanted(case=name, fault=case)
    if not case.volumes:
        fault = "the case names no volume. Name its file in the data set's table, or take the case out."
        return Wanted(case=name, fault=fault)
    try:
        with blame(offer_of(assembly.view), f"rendering case {case.id!r}"):
            parts = [part for part in assembly.view.render(case) if isinstance(part, VisualPart)]
            sized = tuple((part.crop, assembly.view.size_zyx(part, spec)) for part in parts)
    except DataError as cause:
        return Wanted(case=name, fault=str(cause))
    return Wanted(case=name, volumes=case.volumes, shown=sized)


def fill_case(wanted: Wanted, *, spec: EncoderInput, keeps_volumes: bool, began_s: float) -> Filled:
    """Keep what is wanted of a case and not in the cache already; a file that cannot be used leaves it out.

    Entries that were used since `began_s`, seconds since 1970, by whichever process, make no room.
    """
    if wanted.fault:
        return Filled(case=wanted.case, outcome="left_out", reason=wanted.fault)
    before_bytes = VOLUMES.evicted_bytes
    try:
        parts = [_fill_volume(ref, began_s) for ref in wanted.volumes if keeps_volumes]
        parts += [_fill_input(crop, spec, size_zyx, began_s) for crop, size_zyx in wanted.shown]
        outcomes = {"not_needed", *(outcome for outcome, _ in parts)}
        first: Outcome = next(outcome for outcome in get_args(Outcome) if outcome in outcomes)
        filled = Filled(case=wanted.case, outcome=first, size_bytes=sum(size for _, size in parts))
    except DataError as cause:
        filled = Filled(case=wanted.case, outcome="left_out", reason=str(cause))
    return dataclasses.replace(filled, deleted_bytes=VOLUMES.evicted_bytes - before_bytes)


def _fill_volume(ref: VolumeRef, began_s: float) -> tuple[Outcome, int]:
    key = volume_key(ref)
    if volume_cache.get(ref) is not None:
        return "already_there", 0
    volume = volume_cache.get_or_put(ref, keep_newer_than=began_s)
    if volume.is_on_disk:
        return "done", volume.size_bytes
    if volume_key(ref) != key:
        raise _replaced(ref)
    return ("not_needed" if volume.size_bytes < LEAST_BYTES else "no_room"), 0


def _fill_input(crop: Crop, spec: EncoderInput, size_zyx: Grid, began_s: float) -> tuple[Outcome, int]:
    if crop.blank:
        return "not_needed", 0
    box = read_geometry(crop.volume).box_of(crop)
    voxels = math.prod(np.subtract(box[1::2], box[::2]))
    if 4 * math.prod(size_zyx) * spec.channels > 2 * voxels:  # float32 of voxels of int16
        return "not_needed", 0
    key = content_key(crop, spec, size_zyx)
    if get_input(key) is not None:
        return "already_there", 0
    pixels = prepare(crop, spec, size_zyx, key).numpy()
    if content_key(crop, spec, size_zyx) != key:
        raise _replaced(crop.volume)
    has_room = put_input(key, pixels, keep_newer_than=began_s)
    return ("done", pixels.nbytes) if has_room else ("no_room", 0)


def _replaced(ref: VolumeRef) -> DataError:
    """Say that nothing certain was read of a file."""
    return DataError(f"{ref.path}: changed while it was read. Prepare again once nothing writes to it.")
