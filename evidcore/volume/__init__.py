"""Volumes and masks from files to encoder input: body axes, millimetres, intensity windows, content keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from evidcore.volume.cache import cache_root
from evidcore.volume.content import content_key, file_hash
from evidcore.volume.geometry import Geometry, Volume
from evidcore.volume.kept import KeptVolume, keep, recall
from evidcore.volume.masks import read_mask
from evidcore.volume.nifti import read, read_geometry

if TYPE_CHECKING:
    from evidcore.volume.preparation import prepare

__all__ = [
    "Geometry",
    "KeptVolume",
    "Volume",
    "cache_root",
    "content_key",
    "file_hash",
    "keep",
    "prepare",
    "read",
    "read_geometry",
    "read_mask",
    "recall",
]


def __getattr__(name: str) -> Any:
    """Import `prepare` when it is first asked for: it alone needs torch, which takes two seconds."""
    if name == "prepare":
        from evidcore.volume.preparation import prepare

        return prepare
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
