"""Volumes and masks from files to encoder input: body axes, millimetres, intensity windows, content keys.

It builds on the registry, which knows the installed formats, and on nothing above. Modules of this room
import each other, never the room itself. Imported by contracts and all that looks at voxels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from evidcore.data.arrays import stated_affine
from evidcore.data.cached_volume import CachedVolume, VolumeCache, volume_cache
from evidcore.data.content import content_hash, content_key, file_hash
from evidcore.data.encoder_input import EncoderInput, Grid
from evidcore.data.files import file_state, stem
from evidcore.data.format import Format
from evidcore.data.grid import Array, FileGrid, Geometry, Mask, Source, Triple, Volume
from evidcore.data.masks import label_mask, place_into, place_on, read_mask, resample_mask
from evidcore.data.nifti import save_mask, save_volume
from evidcore.data.placement import turn_to_body
from evidcore.data.reading import read, read_error, read_geometry
from evidcore.data.stored import (
    AGAIN,
    Stored,
    refuse_flat,
    refuse_not_finite,
    refuse_shape,
    refuse_type,
    unreadable,
    written,
)

if TYPE_CHECKING:
    from evidcore.data.preparation import prepare

__all__ = [
    "AGAIN",
    "Array",
    "CachedVolume",
    "EncoderInput",
    "FileGrid",
    "Format",
    "Geometry",
    "Grid",
    "Mask",
    "Source",
    "Stored",
    "Triple",
    "Volume",
    "VolumeCache",
    "content_hash",
    "content_key",
    "file_hash",
    "file_state",
    "label_mask",
    "place_into",
    "place_on",
    "prepare",
    "read",
    "read_error",
    "read_geometry",
    "read_mask",
    "refuse_flat",
    "refuse_not_finite",
    "refuse_shape",
    "refuse_type",
    "resample_mask",
    "save_mask",
    "save_volume",
    "stated_affine",
    "stem",
    "turn_to_body",
    "unreadable",
    "volume_cache",
    "written",
]


def __getattr__(name: str) -> Any:
    """Import `prepare` when it is first asked for: it alone needs torch, which takes two seconds."""
    if name == "prepare":
        from evidcore.data.preparation import prepare

        return prepare
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
