"""What a slice-by-slice network sees of an object, and the walk from the prompted slice to both ends."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from evidcore.api import Box
from evidcore.contracts.segmenting import Window
from evidcore.data import Mask, Volume

Run = Callable[[Float[Tensor, "row channel y x"]], Float[Tensor, "row one y x"]]
Windows = tuple[tuple[float, float], ...]

AROUND = 2.0  # the square is so many times as large as the box's longer side
LEAST_VOXELS = 8  # sides of the square
ROWS_AT_ONCE = 64
INSIDE = 0.5  # probability from which on a voxel belongs to the object
PERCENTILES = (0.5, 99.5)  # ends of the window where values are not HU


@dataclasses.dataclass(frozen=True, kw_only=True)
class Frame:
    """A square of the body on axial slices, which may reach beyond the grid, and its size for the network."""

    y0: int
    y1: int
    x0: int
    x1: int
    size: int

    @classmethod
    def around(cls, box: Box, spacing_mm_yx: tuple[float, float], size: int) -> Frame:
        """Return the square around a box's middle."""
        dy, dx = spacing_mm_yx
        side_mm = AROUND * max((box.y1 - box.y0) * dy, (box.x1 - box.x0) * dx)
        height, width = (max(LEAST_VOXELS, round(side_mm / step)) for step in (dy, dx))
        y0, x0 = (box.y0 + box.y1 - height) // 2, (box.x0 + box.x1 - width) // 2
        return cls(y0=y0, y1=y0 + height, x0=x0, x1=x0 + width, size=size)

    def cut(self, plane: np.ndarray[Any, Any]) -> Float[Tensor, "y x"]:
        """Return a slice's voxels in the square, resampled; beyond the grid its edge goes on."""
        rows = np.clip(np.arange(self.y0, self.y1), 0, plane.shape[0] - 1)
        columns = np.clip(np.arange(self.x0, self.x1), 0, plane.shape[1] - 1)
        inside = torch.from_numpy(np.ascontiguousarray(plane[np.ix_(rows, columns)], dtype=np.float32))
        return _resized(inside, (self.size, self.size))

    def cut_mask(self, mask: np.ndarray[Any, Any]) -> Float[Tensor, "y x"]:
        """Return a mask's shares of voxels in the square, resampled; nothing lies beyond the grid."""
        held = np.zeros((self.y1 - self.y0, self.x1 - self.x0), dtype=np.float32)
        there, here = self._overlap(mask.shape)
        held[there] = mask[here]
        return _resized(torch.from_numpy(held), (self.size, self.size))

    def back(self, values: Float[Tensor, "y x"], shape: tuple[int, int]) -> np.ndarray[Any, Any]:
        """Return values of the square on a slice of `shape` (y, x), 0 elsewhere."""
        plane = np.zeros(shape, dtype=np.float32)
        there, here = self._overlap(shape)
        plane[here] = _resized(values, (self.y1 - self.y0, self.x1 - self.x0)).numpy()[there]
        return plane

    def _overlap(self, shape: tuple[int, ...]) -> tuple[tuple[slice, slice], tuple[slice, slice]]:
        """Return where the square and a slice overlap, in the square and in the slice."""
        y0, y1 = max(0, self.y0), min(shape[0], self.y1)
        x0, x1 = max(0, self.x0), min(shape[1], self.x1)
        there = (slice(y0 - self.y0, y1 - self.y0), slice(x0 - self.x0, x1 - self.x0))
        return there, (slice(y0, y1), slice(x0, x1))


def shown(volume: Volume, z: int, frame: Frame, windows: Windows) -> Float[Tensor, "window y x"]:
    """Return a slice in the square, -1 to 1 in each window."""
    plane = frame.cut(volume.array[z])
    if volume.intensity != "hu":
        low, high = (float(end) for end in np.percentile(volume.array[z], PERCENTILES))
        windows = ((low, high),) * len(windows)
    shares = [plane.sub(low).div(max(high - low, 1e-6)).clamp(0, 1) for low, high in windows]
    return torch.stack(shares).mul(2).sub(1)


def inputs(
    image: Float[Tensor, "window y x"],
    before: Float[Tensor, "window y x"],
    mask: Float[Tensor, "y x"] | None,
    box: Float[Tensor, "y x"] | None,
) -> Float[Tensor, "channel y x"]:
    """Return what the network is given: a slice, the one before, its mask, and the box; None is nothing."""
    nothing = torch.zeros_like(image[0])
    planes = [nothing if plane is None else plane for plane in (mask, box)]
    return torch.cat([image, before, torch.stack(planes)])


@dataclasses.dataclass
class Track:
    """One object on its way through a volume: what is known of each slice in the object's square."""

    volume: Volume
    frame: Frame
    box: Box  # the prompt, or the box of the prompt's mask
    given: Mask | None  # the mask on the prompted slice where that is the prompt, shape (y, x)
    window: Window  # slices from start to stop to walk to
    windows: Windows  # (low, high) of the images

    def __post_init__(self) -> None:
        self._images: dict[int, Tensor] = {}
        self._chances: dict[int, Tensor] = {}
        self._regions: dict[int, Mask] = {}
        if self.given is not None:
            self._chances[self.box.z] = self.frame.cut_mask(self.given)
            self._regions[self.box.z] = self.given

    def first_input(self) -> Tensor:
        """Return what the network is given of the prompted slice."""
        inside = np.zeros(self.volume.shape_zyx[1:], dtype=np.float32)
        inside[self.box.y0 : self.box.y1, self.box.x0 : self.box.x1] = 1.0
        image = self._image(self.box.z)
        return inputs(image, image, None, self.frame.cut_mask(inside))

    def take_first(self, chances: Float[Tensor, "y x"]) -> None:
        """Keep the mask of the prompted slice: where nothing is likely, what is likeliest in the box."""
        z, box = self.box.z, self.box
        plane = self._plane(chances)
        inside = plane[box.y0 : box.y1, box.x0 : box.x1]
        region = plane >= INSIDE
        if not region.any():
            region[box.y0 : box.y1, box.x0 : box.x1] = inside >= inside.max() - 1e-6  # of equal ones all
        self._chances[z], self._regions[z] = chances, region

    def next_input(self, way: int, step: int) -> Tensor | None:
        """Return what the network is given `step` slices away; None where the object or the window ends."""
        z = self.box.z + way * step
        if not self.window[0] <= z < self.window[1] or z - way not in self._regions:
            return None
        return inputs(self._image(z), self._image(z - way), self._chances[z - way], None)

    def take(self, way: int, step: int, chances: Float[Tensor, "y x"]) -> None:
        """Keep the mask of a slice; an empty one ends the object."""
        z = self.box.z + way * step
        region = self._plane(chances) >= INSIDE
        if region.any():
            self._chances[z], self._regions[z] = chances, region

    def put_into(self, found: Mask, start: int, stop: int) -> None:
        """Add the masks of slices from `start` to `stop` to (z, y, x)."""
        for z, region in self._regions.items():
            if start <= z < stop:
                found[z] |= region

    def _plane(self, chances: Tensor) -> np.ndarray[Any, Any]:
        _, height, width = self.volume.shape_zyx
        return self.frame.back(chances, (height, width))

    def _image(self, z: int) -> Tensor:
        if z not in self._images:
            self._images[z] = shown(self.volume, z, self.frame, self.windows)
        return self._images[z]


def carry(tracks: Sequence[Track], run: Run) -> None:
    """Walk objects from their prompted slices to both ends side by side; `run` gives probabilities."""
    fresh = [track for track in tracks if track.given is None]
    for track, chances in zip(fresh, _in_parts([track.first_input() for track in fresh], run), strict=True):
        track.take_first(chances)
    walks = [(track, way) for track in tracks for way in (-1, 1)]
    step = 0
    while walks:
        step += 1
        asked = [(track, way, track.next_input(way, step)) for track, way in walks]
        going = [(track, way, given) for track, way, given in asked if given is not None]
        result = _in_parts([given for _, _, given in going], run)
        for (track, way, _), chances in zip(going, result, strict=True):
            track.take(way, step, chances)
        walks = [(track, way) for track, way, _ in going]


def _in_parts(rows: Sequence[Tensor], run: Run) -> list[Tensor]:
    parts = [rows[start : start + ROWS_AT_ONCE] for start in range(0, len(rows), ROWS_AT_ONCE)]
    return [chances[0] for part in parts for chances in run(torch.stack(list(part)))]


def _resized(plane: Tensor, shape: tuple[int, int]) -> Tensor:
    resized = functional.interpolate(
        plane[None, None], shape, mode="bilinear", align_corners=False, antialias=True
    )
    return resized[0, 0]
