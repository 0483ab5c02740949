"""Prompts on slices in, masks out."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from evidcore.case import Box, VolumeRef


@dataclasses.dataclass(frozen=True, kw_only=True)
class BoxPrompt:
    """A box on an axial slice."""

    box: Box


@dataclasses.dataclass(frozen=True, kw_only=True)
class PointPrompt:
    """A voxel inside the object."""

    z: int
    y: int
    x: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskPrompt:
    """A mask on an axial slice, shape (y, x)."""

    z: int
    mask: np.ndarray[Any, np.dtype[np.bool_]]


SegmenterPrompt = BoxPrompt | PointPrompt | MaskPrompt


class SegmenterSession(ABC):
    """A segmenter that has looked at one volume; prompts on it are cheap."""

    @abstractmethod
    def mask(
        self, prompts: Sequence[SegmenterPrompt], z_window: tuple[int, int] | None = None
    ) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return the mask, shape (z, y, x) on the volume's grid, False outside `z_window` (start, stop).

        Raises:
            ValueError: if a prompt cannot be used (outside the volume, empty); never an empty mask instead.
        """


class Segmenter(ABC):
    """Turn prompts on slices into 3D masks. Core gives: `cache_folder`."""

    @abstractmethod
    def session(self, volume: VolumeRef) -> SegmenterSession:
        """Open `volume`."""
