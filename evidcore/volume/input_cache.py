"""A cache of prepared encoder inputs: `evid data prepare` puts them there, `prepare` gets them."""

from __future__ import annotations

import logging
import math
from pathlib import Path

import numpy as np

from evidcore.case import Crop
from evidcore.contracts import EncoderInput, Grid
from evidcore.formats import Array
from evidcore.volume.cache import cache_root
from evidcore.volume.cache_quota import shared_quota, touch
from evidcore.volume.cached_array import SUFFIX, Damaged, open_array, write_array
from evidcore.volume.content import content_key

log = logging.getLogger(__name__)


def get_input(crop: Crop, spec: EncoderInput, size_zyx: Grid) -> Array | None:
    """Return what `prepare` gave for the same arguments, (channel, z, y, x); None if it is not there.

    Raises:
        DataError: if there is no such file.
    """
    entry = _entry(content_key(crop, spec, size_zyx))
    try:
        held = open_array(entry)
        if held is None:
            return None
        array = held.slices(0, held.shape[0])
    except Damaged as fault:
        log.warning("%s: %s; it is prepared again from %s", entry, fault, crop.volume.path)
        entry.unlink(missing_ok=True)
        return None
    touch(entry)
    return array


def put_input(key: int, pixels: Array, *, spared_since_s: float = math.inf) -> bool:
    """Put what `prepare` gave into the cache; tell whether the quota allowed it.

    Args:
        key: what `content_key` gave for the same arguments, before the file was read and after.
        pixels: float32 (channel, z, y, x).
        spared_since_s: entries used after this time, in seconds since 1970, are not evicted for it.

    Raises:
        RunError: if the disk is full.
    """
    is_allowed = shared_quota().reserve(pixels.nbytes, spared_since_s=spared_since_s)
    if is_allowed:
        write_array(_entry(key), np.asarray(pixels), {})
    return is_allowed


def _entry(key: int) -> Path:
    return cache_root() / "inputs" / f"{key:016x}{SUFFIX}"
