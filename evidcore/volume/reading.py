"""Files of every format to volumes in body axes."""

from __future__ import annotations

import math

import numpy as np

from evidcore.case import VolumeRef
from evidcore.errors import DataError
from evidcore.volume.formats import open_volume
from evidcore.volume.geometry import Geometry, Volume
from evidcore.volume.stored import Stored, refuse_flat, refuse_not_finite
from evidcore.volume.straight import Placement, place, resample

AIR_HU = -1000.0


def read(ref: VolumeRef) -> Volume:
    """Read a scan, whatever its format and the order of its axes.

    The file's slope and intercept are applied, once, then the reference's. Leaning axes are refused, or
    resampled onto a straight grid: linearly, air outside (the lowest value where intensity is arbitrary).

    Raises:
        DataError: if the file cannot be used; names it, the value and what to do.
    """
    stored, placement = opened(ref)
    array = np.ascontiguousarray(placement.turn.apply(stored.values(ref.rescale)))
    refuse_not_finite(array, ref.path)
    if placement.is_resampled:
        outside = AIR_HU if ref.intensity == "hu" else float(array.min())
        array = resample(array, placement.meant, placement.geometry, order=1, outside=outside)
    array.setflags(write=False)
    return Volume(array=array, geometry=placement.geometry, intensity=ref.intensity, source=placement.source)


def read_geometry(ref: VolumeRef) -> Geometry:
    """Read the grid of a volume from its header alone, or from the headers of its series."""
    return opened(ref)[1].geometry


def opened(ref: VolumeRef) -> tuple[Stored, Placement]:
    """Read the headers behind a reference and work out how its voxels become those of the volume."""
    if ref.rescale is not None and not (all(map(math.isfinite, ref.rescale)) and ref.rescale[0]):
        raise DataError(
            f"{ref.path}: rescale must be a slope other than 0 and an intercept, got {ref.rescale}. "
            f"Correct it in the data set."
        )
    if ref.spacing_mm_zyx is not None and not all(math.isfinite(mm) and mm > 0 for mm in ref.spacing_mm_zyx):
        raise DataError(
            f"{ref.path}: spacing_mm_zyx must be three numbers above 0 mm, got {ref.spacing_mm_zyx}. "
            f"Correct it in the data set."
        )
    stored = open_volume(ref)
    if not stored.is_picture:
        refuse_flat(stored.grid.shape, ref.path)
    return stored, place(stored.grid, ref)
