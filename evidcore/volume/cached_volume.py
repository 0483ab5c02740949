"""A cache of volumes: uncompressed, so that a slice is read without the rest.

An entry is made when a part of a volume is first asked for, or by `evid data prepare`. Its name is the key of
the volume's content, so it is right wherever the file is and whichever process made it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
import math
import mmap
import os
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from isal.isal_zlib import crc32

from evidcore.case import VolumeRef
from evidcore.errors import DataError
from evidcore.formats import Array, Geometry, Volume
from evidcore.registry import cache_root
from evidcore.volume.cache import naming_full_disk, replacing, shared_quota, touch
from evidcore.volume.content import volume_key
from evidcore.volume.reading import opened, read

SUFFIX = ".safetensors"
_NAMES = {"int16": "I16", "float32": "F32"}
_TYPES = {"I16": "<i2", "F32": "<f4"}
_MOST_HEADER_BYTES = 1 << 20


class Damaged(Exception):
    """A file does not hold what was written; says why."""


class CachedArray:
    """An array whose slices are verified when they are first used."""

    def __init__(self, array: Array, facts: Mapping[str, Any], checksums: Array | None = None) -> None:
        """Take an array that lies in a file, or, without checksums, one that is sound."""
        self.facts = facts
        self._array, self._checksums = array, checksums
        self._is_sound = np.full(len(array), checksums is None)

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of all axes."""
        return tuple(self._array.shape)

    @property
    def size_bytes(self) -> int:
        """Size of the array alone."""
        return int(self._array.nbytes)

    @property
    def is_on_disk(self) -> bool:
        """Tell whether it lies in a file."""
        return self._checksums is not None

    def slices(self, start: int, stop: int) -> Array:
        """Return a read-only view of slices `start` to `stop`, which are read and verified, no others.

        Raises:
            Damaged: if one is not what was written.
        """
        if self._checksums is not None:
            for index in range(start, stop):
                if not self._is_sound[index]:
                    if crc32(self._array[index]) != self._checksums[index]:
                        raise Damaged(f"slice {index} of {len(self._array)} has another checksum")
                    self._is_sound[index] = True
        return self._array[start:stop]


def open_array(path: Path) -> CachedArray | None:
    """Map a file of `write_array`; None where there is none, or none that may be read.

    Raises:
        Damaged: if its header cannot be right.
    """
    try:
        with path.open("rb") as file:
            size_bytes = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little")
            if not 0 < length <= min(size_bytes - 8, _MOST_HEADER_BYTES):
                raise Damaged(f"its header would be {length} bytes of {size_bytes}")
            head = file.read(length)
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    try:
        held = json.loads(head)
        array, checksums = (_tensor(mapped, held[name], 8 + length) for name in ("array", "checksums"))
        known = held["__metadata__"]
        sound = known["digest"] == _digest(known["facts"], array, checksums) and len(array) == len(checksums)
        facts = json.loads(known["facts"])
    except (ValueError, KeyError, TypeError, AttributeError) as cause:
        raise Damaged(f"its header cannot be read ({cause})") from cause
    if not sound:
        raise Damaged("its header has another checksum")
    return CachedArray(array, facts, checksums)


def write_array(path: Path, array: Array, facts: Mapping[str, Any]) -> None:
    """Write an array and JSON-like facts about it, in one move; not if the cache is cleared away meanwhile.

    Args:
        path: the file; its folder is made.
        array: int16 or float32, at least one axis.
        facts: comes back with the array.

    Raises:
        RunError: if the disk is full or may not be written to; names EVID_CACHE.
    """
    array = np.ascontiguousarray(array, _TYPES[_NAMES[array.dtype.name]])
    checksums = np.array([crc32(part) for part in array], "<u4")
    text = json.dumps(facts)
    head = {
        "__metadata__": {"facts": text, "digest": _digest(text, array, checksums)},
        "checksums": _tensor_entry("U32", checksums, 0),
        "array": _tensor_entry(_NAMES[array.dtype.name], array, checksums.nbytes),
    }
    header = json.dumps(head).encode()
    header += b" " * (-len(header) % 8)
    with contextlib.suppress(FileNotFoundError), naming_full_disk(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(len(header).to_bytes(8, "little") + header)
            file.write(checksums.data)
            file.write(array.data)


def _tensor_entry(dtype: str, array: Array, start: int) -> dict[str, Any]:
    """Return how a safetensors header names a tensor."""
    return {"dtype": dtype, "shape": list(array.shape), "data_offsets": [start, start + array.nbytes]}


def _tensor(mapped: mmap.mmap, entry: Mapping[str, Any], begin: int) -> Array:
    """Return the tensor that a header's entry names, as a view of the file."""
    dtype = np.dtype((_TYPES | {"U32": "<u4"})[entry["dtype"]])
    shape = [int(count) for count in entry["shape"]]
    start = begin + int(entry["data_offsets"][0])
    return np.frombuffer(mapped, dtype, math.prod(shape), start).reshape(shape)


def _digest(facts: str, array: Array, checksums: Array) -> str:
    """Return a checksum over all but the voxels."""
    text = f"{facts} {array.dtype.str} {array.shape}".encode()
    return hashlib.blake2b(text + checksums.tobytes(), digest_size=16).hexdigest()


LEAST_BYTES = 1 << 20  # smaller volumes are read as fast as they are looked up
PERCENTILES = (0.5, 99.5)
PERCENTILE_SAMPLE = 1_000_000  # voxels; enough for the 0.5 % tails, and quick on a whole-body scan
LAYOUT = 1  # raise whenever an entry holds something else

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Intensities:
    """What the values of a volume span."""

    least: float
    most: float
    percentile_ends: tuple[float, float]  # the 0.5th and 99.5th percentile


@dataclasses.dataclass(kw_only=True)
class CachedVolume:
    """A volume of which slices are read as they are needed."""

    ref: VolumeRef
    geometry: Geometry
    _slices: CachedArray
    _cache: VolumeCache

    @property
    def intensities(self) -> Intensities:
        """What the values span: stored with a volume on disk, measured for one in memory."""
        if not self.is_on_disk:
            return _span(self._slices.slices(0, self.geometry.shape_zyx[0]))
        (least, most), (low, high) = (self._slices.facts[name] for name in ("range", "percentile_ends"))
        return Intensities(least=least, most=most, percentile_ends=(low, high))

    @property
    def is_on_disk(self) -> bool:
        """Tell whether it is in the cache on disk; otherwise it is in memory."""
        return self._slices.is_on_disk

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
            _evict(volume_key(self.ref), self.ref, fault)
            self._slices = self._cache.get_or_put(self.ref)._slices
            return self._slices.slices(start, stop)


class VolumeCache:
    """Volumes by their content: on disk for their slices, the last two that were read whole in memory."""

    def __init__(self) -> None:
        """Begin with nothing in memory."""
        self._recent: deque[tuple[str, Volume]] = deque(maxlen=2)  # zooms of one volume follow each other

    def get(self, ref: VolumeRef) -> CachedVolume | None:
        """Return a volume if it is on disk.

        Raises:
            DataError: if there is no such file.
        """
        return self._get(volume_key(ref), ref)

    def get_or_put(self, ref: VolumeRef, *, spared_since_s: float = math.inf) -> CachedVolume:
        """Return a volume whose slices are read one by one; read and put it on disk if it is not there.

        Volumes below 1 MiB, and those that exceed the quota, are held in memory instead.

        Args:
            ref: which volume.
            spared_since_s: entries used after this time, in seconds since 1970, are not evicted for it.

        Raises:
            DataError: if the file cannot be used.
            RunError: if the disk is full, or EVID_CACHE_GB is no size.
        """
        key = volume_key(ref)
        cached = self._get(key, ref)
        if cached is not None:
            return cached
        held = self._in_memory(key)
        volume = held or read(ref)
        size_bytes = volume.array.nbytes
        is_same = held is not None or volume_key(ref) == key  # not if the file was replaced while it was read
        if (
            is_same
            and size_bytes >= LEAST_BYTES
            and shared_quota().reserve(size_bytes, spared_since_s=spared_since_s)
        ):
            write_array(_entry(key), volume.array, _facts(volume))
            cached = self._get(key, ref)
            if cached is not None:
                return cached
        if is_same and self._in_memory(key) is None:
            self._recent.append((key, volume))
        slices = CachedArray(volume.array, {})
        return CachedVolume(ref=ref, geometry=volume.geometry, _slices=slices, _cache=self)

    def read(self, ref: VolumeRef) -> Volume:
        """Return a whole volume: the last two come from memory, those on disk are mapped, others are read.

        Raises:
            DataError: if the file cannot be used.
        """
        key = volume_key(ref)
        volume = self._in_memory(key)
        if volume is None:
            cached = self._get(key, ref)
            volume = read(ref) if cached is None else cached.volume()
            if volume_key(ref) == key:  # not if the file was replaced while it was read
                self._recent.append((key, volume))
        return volume

    def intensities(self, ref: VolumeRef) -> Intensities:
        """Return what a volume's values span, from the disk where it is there.

        Raises:
            DataError: if the file cannot be used.
        """
        cached = self.get(ref)
        return _span(self.read(ref).array) if cached is None else cached.intensities

    def _get(self, key: str, ref: VolumeRef) -> CachedVolume | None:
        path = _entry(key)
        try:
            slices = open_array(path)
        except Damaged as fault:
            _evict(key, ref, fault)
            return None
        if slices is None:
            return None
        touch(path)
        z, y, x = slices.shape
        geometry = Geometry(shape_zyx=(z, y, x), affine=np.array(slices.facts["affine"]))
        return CachedVolume(ref=ref, geometry=geometry, _slices=slices, _cache=self)

    def _in_memory(self, key: str) -> Volume | None:
        return next((volume for known, volume in tuple(self._recent) if known == key), None)


volume_cache = VolumeCache()  # this process's


def _entry(key: str) -> Path:
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


def _evict(key: str, ref: VolumeRef, fault: Damaged) -> None:
    """Delete a damaged entry, with a line in the log."""
    path = _entry(key)
    log.warning("%s: %s; it is made again from %s", path, fault, ref.path)
    path.unlink(missing_ok=True)
