"""Arrays in files that are mapped into memory, each slice along the first axis with a checksum of its own.

A file is a safetensors file: `array` (slice, ...), `checksums` (slice) as CRC-32, and metadata with what else
is known, which has a checksum too. It appears in one move. It is not forced to the disk: what a power cut
leaves of it is found damaged and made again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from isal.isal_zlib import crc32

from evidcore.formats import Array
from evidcore.volume.cache import naming_full_disk, replacing

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
        "checksums": _entry("U32", checksums, 0),
        "array": _entry(_NAMES[array.dtype.name], array, checksums.nbytes),
    }
    header = json.dumps(head).encode()
    header += b" " * (-len(header) % 8)
    with contextlib.suppress(FileNotFoundError), naming_full_disk(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(len(header).to_bytes(8, "little") + header)
            file.write(checksums.data)
            file.write(array.data)


def _entry(dtype: str, array: Array, start: int) -> dict[str, Any]:
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
