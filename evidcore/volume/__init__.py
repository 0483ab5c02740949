"""Volumes and masks from files to encoder input: body axes, millimetres, intensity windows, content keys."""

from __future__ import annotations

from evidcore.volume.cache import cache_root
from evidcore.volume.content import content_key, file_hash
from evidcore.volume.geometry import Geometry, Volume
from evidcore.volume.masks import read_mask
from evidcore.volume.nifti import read, read_geometry
from evidcore.volume.preparation import prepare

__all__ = [
    "Geometry",
    "Volume",
    "cache_root",
    "content_key",
    "file_hash",
    "prepare",
    "read",
    "read_geometry",
    "read_mask",
]
