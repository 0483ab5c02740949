"""Prepared encoder inputs by way of the cache: `evid data prepare` keeps them, `prepare` finds them."""

from __future__ import annotations

import logging
import math
from pathlib import Path

import numpy as np

from evidcore.case import Crop
from evidcore.contracts import EncoderInput, Grid
from evidcore.volume.cache import cache_root
from evidcore.volume.content import content_key
from evidcore.volume.geometry import Array
from evidcore.volume.kept import cache_room
from evidcore.volume.kept_array import SUFFIX, Damaged, open_array, write_array
from evidcore.volume.room import touch

log = logging.getLogger(__name__)


def find_input(crop: Crop, spec: EncoderInput, size_zyx: Grid) -> Array | None:
    """Return what `prepare` gave for the same arguments, (channel, z, y, x); None if it is not kept.

    Raises:
        DataError: if there is no such file.
    """
    place = _place(content_key(crop, spec, size_zyx))
    try:
        held = open_array(place)
        if held is None:
            return None
        array = held.slices(0, held.shape[0])
    except Damaged as fault:
        log.warning("%s: %s; it is prepared again from %s", place, fault, crop.volume.path)
        place.unlink(missing_ok=True)
        return None
    touch(place)
    return array


def keep_input(key: int, pixels: Array, *, spared_since_s: float = math.inf) -> bool:
    """Keep what `prepare` gave; tell whether there was room.

    Args:
        key: what `content_key` gave for the same arguments, before the file was read and after.
        pixels: float32 (channel, z, y, x).
        spared_since_s: entries used after this time, in seconds since 1970, do not make room for it.

    Raises:
        RunError: if the disk is full.
    """
    has_room = cache_room().take(pixels.nbytes, spared_since_s=spared_since_s)
    if has_room:
        write_array(_place(key), np.asarray(pixels), {})
    return has_room


def _place(key: int) -> Path:
    return cache_root() / "inputs" / f"{key:016x}{SUFFIX}"
