"""Fill the cache for one case: its volumes, and what the encoder is given of them."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

from evidcore.case import Crop, VolumeRef
from evidcore.contracts import EncoderInput, Grid
from evidcore.data.cached_volume import LEAST_BYTES, VOLUMES, volume_cache
from evidcore.data.content import content_key, volume_key
from evidcore.data.preparation import get_input, prepare, put_input
from evidcore.data.reading import read_geometry
from evidcore.errors import DataError

Outcome = Literal["done", "already_there", "no_room", "not_needed", "left_out"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wanted:
    """What is to be kept of one case."""

    case: str
    volumes: tuple[VolumeRef, ...]
    shown: tuple[tuple[Crop, Grid], ...]  # crops, and at what size the encoder is given them
    fault: str = ""  # why the case cannot be shown at all


@dataclasses.dataclass(frozen=True, kw_only=True)
class Filled:
    """What became of one case.

    `outcome` is "no_room" where the cache is too full for some of it of what was used since this fill began;
    else "done" where anything was written; else "already_there" where anything was; else "not_needed": volume
    and inputs are small, or no smaller than what they are made of.
    """

    case: str
    outcome: Outcome
    size_bytes: int = 0  # written for it
    deleted_bytes: int = 0  # older entries that made room for it
    reason: str = ""  # why it was left out


@dataclasses.dataclass(frozen=True, kw_only=True)
class Filler:
    """Keeps what is wanted of a case; whatever is kept already is found and not made again."""

    spec: EncoderInput
    keeps_volumes: bool
    began_s: float  # seconds since 1970; entries used since, by whichever process, make no room

    def __call__(self, wanted: Wanted) -> Filled:
        """Keep what is wanted of a case; a file that cannot be used leaves it out."""
        if wanted.fault:
            return Filled(case=wanted.case, outcome="left_out", reason=wanted.fault)
        before_bytes = VOLUMES.evicted_bytes
        try:
            found = [self._volume(ref) for ref in wanted.volumes if self.keeps_volumes]
            found += [self._input(crop, size) for crop, size in wanted.shown]
        except DataError as cause:
            deleted_bytes = VOLUMES.evicted_bytes - before_bytes
            return Filled(
                case=wanted.case, outcome="left_out", deleted_bytes=deleted_bytes, reason=str(cause)
            )
        written = sum(size_bytes for _, size_bytes in found)
        ranked: tuple[Outcome, ...] = ("no_room", "done", "already_there", "not_needed")
        outcomes = {outcome for outcome, _ in found} | {"not_needed"}
        first = next(outcome for outcome in ranked if outcome in outcomes)
        deleted_bytes = VOLUMES.evicted_bytes - before_bytes
        return Filled(case=wanted.case, outcome=first, size_bytes=written, deleted_bytes=deleted_bytes)

    def _volume(self, ref: VolumeRef) -> tuple[Outcome, int]:
        key = volume_key(ref)
        if volume_cache.get(ref) is not None:
            return "already_there", 0
        volume = volume_cache.get_or_put(ref, keep_newer_than=self.began_s)
        if volume.is_on_disk:
            return "done", volume.size_bytes
        if volume_key(ref) != key:
            raise _replaced(ref)
        return ("not_needed" if volume.size_bytes < LEAST_BYTES else "no_room"), 0

    def _input(self, crop: Crop, size_zyx: Grid) -> tuple[Outcome, int]:
        if crop.blank or self._input_bytes(size_zyx) > _voxel_bytes(crop):
            return "not_needed", 0
        key = content_key(crop, self.spec, size_zyx)
        if get_input(key) is not None:
            return "already_there", 0
        pixels = prepare(crop, self.spec, size_zyx, key).numpy()
        if content_key(crop, self.spec, size_zyx) != key:
            raise _replaced(crop.volume)
        has_room = put_input(key, pixels, keep_newer_than=self.began_s)
        return ("done", pixels.nbytes) if has_room else ("no_room", 0)

    def _input_bytes(self, size_zyx: Grid) -> int:
        return 4 * math.prod(size_zyx) * self.spec.channels


def _replaced(ref: VolumeRef) -> DataError:
    """Say that nothing certain was read of a file."""
    return DataError(f"{ref.path}: changed while it was read. Prepare again once nothing writes to it.")


def _voxel_bytes(crop: Crop) -> int:
    """Return what the voxels of a crop take as int16."""
    if crop.box_zyx is None:
        return 2 * math.prod(read_geometry(crop.volume).shape_zyx)
    z0, z1, y0, y1, x0, x1 = crop.box_zyx
    return 2 * (z1 - z0) * (y1 - y0) * (x1 - x0)
