"""Volumes and masks from files to encoder input: body axes, millimetres, intensity windows, content keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from evidcore.formats import Geometry, Source, Volume
from evidcore.volume.arrays import stated_affine
from evidcore.volume.cached_volume import CachedVolume, VolumeCache, volume_cache
from evidcore.volume.content import content_hash, content_key, file_hash
from evidcore.volume.files import file_state, stem
from evidcore.volume.geometry import turn_to_body
from evidcore.volume.masks import label_mask, place_into, place_on, read_mask, resample_mask
from evidcore.volume.nifti import save_mask, save_volume
from evidcore.volume.reading import read, read_error, read_geometry

if TYPE_CHECKING:
    from evidcore.volume.preparation import prepare

__all__ = [
    "CachedVolume",
    "Geometry",
    "Source",
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
    "resample_mask",
    "save_mask",
    "save_volume",
    "stated_affine",
    "stem",
    "turn_to_body",
    "volume_cache",
]


def __getattr__(name: str) -> Any:
    """Import `prepare` when it is first asked for: it alone needs torch, which takes two seconds."""
    if name == "prepare":
        from evidcore.volume.preparation import prepare

        return prepare
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
