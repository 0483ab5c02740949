"""Volumes by way of the cache: kept uncompressed, so that a slice comes without reading the rest.

An entry is made when a part of a volume is first asked for, or by `evid data prepare`. Its name is the key of
the volume's content, so it is right wherever the file lies and whichever process made it.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

from evidcore.case import VolumeRef
from evidcore.errors import DataError
from evidcore.volume.cache import cache_root
from evidcore.volume.content import volume_key
from evidcore.volume.geometry import Array, Geometry, Volume
from evidcore.volume.kept_array import SUFFIX, Damaged, KeptArray, open_array, write_array
from evidcore.volume.reading import opened, read
from evidcore.volume.room import Room, room, touch

LEAST_BYTES = 1 << 20  # smaller volumes are read as fast as they are looked up
PERCENTILES = (0.5, 99.5)
PERCENTILE_SAMPLE = 1_000_000  # voxels; enough for the 0.5 % tails, and quick on a whole-body scan
LAYOUT = 1  # raise whenever an entry holds something else

log = logging.getLogger(__name__)
_recent: deque[tuple[str, Volume]] = deque(maxlen=2)  # zooms of one volume come one after another


@dataclasses.dataclass(frozen=True, kw_only=True)
class Intensities:
    """What the values of a volume span."""

    least: float
    most: float
    percentile_ends: tuple[float, float]  # the 0.5th and 99.5th percentile


@dataclasses.dataclass(kw_only=True)
class KeptVolume:
    """A volume of which slices are read as they are needed."""

    ref: VolumeRef
    geometry: Geometry
    _slices: KeptArray

    @property
    def intensities(self) -> Intensities:
        """What the values span: known of a kept volume, found by going over one in memory."""
        if not self.is_kept:
            return _span(self._slices.slices(0, self.geometry.shape_zyx[0]))
        (least, most), (low, high) = (self._slices.facts[name] for name in ("range", "percentile_ends"))
        return Intensities(least=least, most=most, percentile_ends=(low, high))

    @property
    def is_kept(self) -> bool:
        """Tell whether it lies in the cache; otherwise it is in memory."""
        return self._slices.is_kept

    @property
    def size_bytes(self) -> int:
        """Size of all its voxels."""
        return self._slices.size_bytes

    def part(self, box_zyx: tuple[int, int, int, int, int, int]) -> Array:
        """Return the voxels of a box z0, z1, y0, y1, x0, x1 as a read-only (z, y, x) view.

        Raises:
            DataError: if the box does not lie inside the volume; names both.
        """
        z0, z1, y0, y1, x0, x1 = box_zyx
        edges = zip(((z0, z1), (y0, y1), (x0, x1)), self.geometry.shape_zyx, strict=True)
        if any(not 0 <= start < stop <= count for (start, stop), count in edges):
            raise DataError(
                f"{self.ref.path}: the box {tuple(box_zyx)} (z0, z1, y0, y1, x0, x1) must hold voxels of "
                f"the volume, whose shape is {self.geometry.shape_zyx}. "
                f"Boxes run from start to stop, stop excluded."
            )
        return self._sound(z0, z1)[:, y0:y1, x0:x1]

    def slice(self, z: int) -> Array:
        """Return an axial slice as a read-only (y, x) view.

        Raises:
            DataError: if the volume has no such slice.
        """
        _, height, width = self.geometry.shape_zyx
        plane: Array = self.part((z, z + 1, 0, height, 0, width))[0]
        return plane

    def volume(self) -> Volume:
        """Return all of it."""
        array = self._sound(0, self.geometry.shape_zyx[0])
        source = opened(self.ref)[1].source
        return Volume(array=array, geometry=self.geometry, intensity=self.ref.intensity, source=source)

    def _sound(self, start: int, stop: int) -> Array:
        """Return slices; make a damaged entry again."""
        try:
            return self._slices.slices(start, stop)
        except Damaged as fault:
            _drop(volume_key(self.ref), self.ref, fault)
            self._slices = keep(self.ref)._slices
            return self._slices.slices(start, stop)


def keep(ref: VolumeRef, *, spared_since_s: float = math.inf) -> KeptVolume:
    """Return a volume whose slices can be read one by one; it is read and kept if it was not.

    Volumes below 1 MiB, and those for which there is no room, are held in memory instead.

    Args:
        ref: which volume.
        spared_since_s: entries used after this time, in seconds since 1970, do not make room for it.

    Raises:
        DataError: if the file cannot be used.
        RunError: if the disk is full, or EVID_CACHE_GB is no size.
    """
    key = volume_key(ref)
    held = _found(key, ref)
    if held is not None:
        return held
    volume = _remembered(key) or read(ref)
    size_bytes = volume.array.nbytes
    is_same = volume_key(ref) == key  # not if the file was replaced while it was read
    if is_same and size_bytes >= LEAST_BYTES and cache_room().take(size_bytes, spared_since_s=spared_since_s):
        write_array(_place(key), volume.array, _facts(volume))
        held = _found(key, ref)
        if held is not None:
            return held
    if is_same and _remembered(key) is None:
        _recent.append((key, volume))
    return KeptVolume(ref=ref, geometry=volume.geometry, _slices=KeptArray(volume.array, {}))


def find(ref: VolumeRef) -> KeptVolume | None:
    """Return a volume if it is kept.

    Raises:
        DataError: if there is no such file.
    """
    return _found(volume_key(ref), ref)


def _found(key: str, ref: VolumeRef) -> KeptVolume | None:
    place = _place(key)
    try:
        held = open_array(place)
    except Damaged as fault:
        _drop(key, ref, fault)
        return None
    if held is None:
        return None
    touch(place)
    return _kept(ref, held)


def recall(ref: VolumeRef) -> Volume:
    """Return a whole volume: the last two are remembered, kept ones are mapped, others are read.

    Raises:
        DataError: if the file cannot be used.
    """
    key = volume_key(ref)
    volume = _remembered(key)
    if volume is None:
        held = _found(key, ref)
        volume = read(ref) if held is None else held.volume()
        if volume_key(ref) == key:  # not if the file was replaced while it was read
            _recent.append((key, volume))
    return volume


def intensities(ref: VolumeRef) -> Intensities:
    """Return what a volume's values span, from the cache where it is kept.

    Raises:
        DataError: if the file cannot be used.
    """
    held = find(ref)
    return _span(recall(ref).array) if held is None else held.intensities


def cache_room() -> Room:
    """Return the room that volumes and prepared inputs share."""
    return room(cache_root() / "volumes", cache_root() / "inputs")


def _remembered(key: str) -> Volume | None:
    """Return a volume that is in memory."""
    return next((volume for known, volume in tuple(_recent) if known == key), None)


def _place(key: str) -> Path:
    return cache_root() / "volumes" / f"{key}-{LAYOUT}{SUFFIX}"


def _facts(volume: Volume) -> dict[str, Any]:
    """Return what is written beside the voxels."""
    span = _span(volume.array)
    return {
        "affine": volume.affine.tolist(),
        "range": [span.least, span.most],
        "percentile_ends": list(span.percentile_ends),
    }


def _span(array: Array) -> Intensities:
    """Measure what the values span."""
    flat = array.reshape(-1)
    stride = flat.size // PERCENTILE_SAMPLE | 1  # odd: does not keep to a few columns
    low, high = (float(end) for end in np.percentile(flat[::stride], PERCENTILES))
    return Intensities(least=float(flat.min()), most=float(flat.max()), percentile_ends=(low, high))


def _kept(ref: VolumeRef, held: KeptArray) -> KeptVolume:
    z, y, x = held.shape
    geometry = Geometry(shape_zyx=(z, y, x), affine=np.array(held.facts["affine"]))
    return KeptVolume(ref=ref, geometry=geometry, _slices=held)


def _drop(key: str, ref: VolumeRef, fault: Damaged) -> None:
    """Delete a damaged entry, with a line in the log."""
    place = _place(key)
    log.warning("%s: %s; it is made again from %s", place, fault, ref.path)
    place.unlink(missing_ok=True)
