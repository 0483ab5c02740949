"""Files of every format to volumes in body axes."""

import functools
import math
import os
from pathlib import Path

import numpy as np

from evidcore.cache import Cache
from evidcore.case import VolumeRef
from evidcore.data.content import READING
from evidcore.data.files import State, file_state, open_volume, reader_mark
from evidcore.data.grid import Array, Geometry, Volume
from evidcore.data.placement import Placement, place, resample
from evidcore.data.stored import (
    MOST_SCALE,
    Stored,
    memory_named,
    refuse_flat,
    refuse_not_finite,
    refuse_scale,
    refuse_shape,
)
from evidcore.errors import DataError

AIR_HU = -1000.0


def read(ref: VolumeRef) -> Volume:
    """Read a scan, whatever its format and the order of its axes.

    The file's slope and intercept are applied, once, then the reference's. Oblique axes are refused, or
    resampled linearly onto a grid along the body's, with air outside (the lowest value where intensity is
    arbitrary).

    Raises:
        DataError: if the file cannot be used; names it, the value and what to do.
    """
    return volume_of(ref, *opened(ref))


def volume_of(ref: VolumeRef, stored: Stored, placement: Placement) -> Volume:
    """Load the voxels of an opened file and bring them to body axes."""
    with memory_named(ref.path):
        array = np.ascontiguousarray(placement.turn.apply(stored.values(ref.rescale)))
        refuse_not_finite(array, ref.path)
        if placement.is_resampled:
            outside = AIR_HU if ref.intensity == "hu" else float(array.min())
            array = resample(array, placement.meant, placement.geometry, order=1, outside=outside)
    array.setflags(write=False)
    return volume_from(array, ref, stored, placement)


def volume_from(array: Array, ref: VolumeRef, stored: Stored, placement: Placement) -> Volume:
    """Return voxels in body axes as the volume of an opened file."""
    geometry, source, patient = placement.geometry, placement.source, stored.patient
    return Volume(array=array, geometry=geometry, intensity=ref.intensity, source=source, patient=patient)


def read_geometry(ref: VolumeRef) -> Geometry:
    """Read the grid of a volume from the headers of its files, once for each state of them."""
    state = file_state(ref.path)  # a task asks for it several times a row
    return opened(ref)[1].geometry if state is None else _geometry(ref, state)


@functools.lru_cache(maxsize=16384)
def _geometry(ref: VolumeRef, state: State) -> Geometry:
    result = opened(ref)[1].geometry
    result.affine.setflags(write=False)  # all who ask share it
    return result


def opened(ref: VolumeRef) -> tuple[Stored, Placement]:
    """Read the headers behind a reference and work out how its voxels become those of the volume."""
    scale = ref.rescale or (1.0, 0.0)
    if not (all(abs(number) <= MOST_SCALE for number in scale) and scale[0]):  # NaN is not below
        why = f"rescale must be a slope other than 0 and an intercept, got {ref.rescale}"
        raise DataError(f"{ref.path}: {why}. Correct it in the data set.")
    if ref.spacing_mm_zyx is not None and not all(math.isfinite(mm) and mm > 0 for mm in ref.spacing_mm_zyx):
        why = f"spacing_mm_zyx must be three numbers above 0 mm, got {ref.spacing_mm_zyx}"
        raise DataError(f"{ref.path}: {why}. Correct it in the data set.")
    stored = open_volume(ref)
    return stored, placed(ref, stored)


def placed(ref: VolumeRef, stored: Stored) -> Placement:
    """Work out how the voxels of an opened file become those of its volume."""
    if not stored.is_picture:
        refuse_shape(stored.grid.shape, ref.path)
        refuse_flat(stored.grid.shape, ref.path)
    refuse_scale(stored, ref.path)
    return place(stored.grid, ref)


def read_error(ref: VolumeRef, cache_folder: Path) -> str | None:
    """Return why `read` refuses a volume, None if it does not; read once for each state of its files.

    Transient errors of the operating system, and what memory was too small for, are not cached.
    """
    state = file_state(ref.path)
    mark = [] if state is None else reader_mark(ref.path)
    cache = Cache("usable", cache_folder)
    key = [READING, os.path.realpath(ref.path), ref.to_params(), state, mark]
    cached = None if state is None else cache.get(key)
    if cached is None:
        cached, lasts = b"", state is not None
        try:
            read(ref)
        except DataError as error:
            cached = str(error).encode()
            # a failed system call has an error number; a fault in the content has none
            cause = error.__cause__
            lasts = lasts and getattr(cause, "errno", None) is None and not isinstance(cause, MemoryError)
        if lasts:
            cache.put(key, cached)
    return cached.decode() or None
