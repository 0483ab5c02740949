"""Volumes and masks from files to encoder input: body axes, millimetres, intensity windows, content keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from evidcore.volume.cache import cache_root
from evidcore.volume.content import content_key, file_hash
from evidcore.volume.formats import file_state
from evidcore.volume.geometry import Geometry, Source, Volume
from evidcore.volume.masks import read_mask
from evidcore.volume.reading import read, read_geometry
from evidcore.volume.saving import save_mask

if TYPE_CHECKING:
    from evidcore.volume.preparation import prepare

__all__ = [
    "Geometry",
    "Source",
    "Volume",
    "cache_root",
    "content_key",
    "file_hash",
    "file_state",
    "prepare",
    "read",
    "read_geometry",
    "read_mask",
    "save_mask",
]


def __getattr__(name: str) -> Any:
    """Import `prepare` when it is first asked for: it alone needs torch, which takes two seconds."""
    if name == "prepare":
        from evidcore.volume.preparation import prepare

        return prepare
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
