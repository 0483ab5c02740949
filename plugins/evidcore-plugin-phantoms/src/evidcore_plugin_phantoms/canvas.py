"""The voxel grid of a chest phantom, shapes on it, and a body while it is drawn."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from evidcore_plugin_phantoms import shapes
from evidcore_plugin_phantoms.shapes import Region, Volume

Point = np.ndarray[Any, np.dtype[np.float64]]  # z, y, x in voxels

SIZE_ZYX = (32, 64, 64)
SPACING_MM_ZYX = (10.0, 5.5, 5.5)
AIR_HU, LUNG_HU, FAT_HU, MUSCLE_HU, BLOOD_HU = -1000.0, -850.0, -100.0, 40.0, 45.0
RIGHT, LEFT = 0, 1

zs = np.arange(SIZE_ZYX[0], dtype=np.float32)[:, None, None]
ys = np.arange(SIZE_ZYX[1], dtype=np.float32)[None, :, None]
xs = np.arange(SIZE_ZYX[2], dtype=np.float32)[None, None, :]


def voxels_zyx(radius_mm: float) -> tuple[float, float, float]:
    """Return a radius in mm as voxels along z, y and x."""
    z, y, x = SPACING_MM_ZYX
    return radius_mm / z, radius_mm / y, radius_mm / x


def level(centre: tuple[float, float, float], radii: tuple[float, float, float]) -> Volume:
    """Return the squared distance from `centre` in units of `radii` (voxels): below 1 inside."""
    return shapes.level((zs, ys, xs), centre, radii)


def smooth_field(rng: np.random.Generator, cells: tuple[int, int, int]) -> Volume:
    """Return unit noise on a coarse grid of `cells`, interpolated to the volume."""
    return shapes.smooth_field(rng, cells, SIZE_ZYX)


@dataclasses.dataclass
class Lung:
    """One lung: its ellipsoid in voxels."""

    centre: tuple[float, float, float]
    radii: tuple[float, float, float]
    level: Volume


@dataclasses.dataclass
class Heart:
    """The heart: its ellipsoid in voxels."""

    centre: tuple[float, float, float]
    radii: tuple[float, float, float]
    level: Volume


@dataclasses.dataclass
class Body:
    """A phantom while it is drawn.

    `owner` says which sign a voxel shows, by its index among the findings; -1 where it shows none.
    """

    hu: Volume
    owner: np.ndarray[Any, np.dtype[np.int8]]
    centre: tuple[float, float, float]
    scale: float
    wall: Volume  # level of the body's ellipse by y and x: 1 at the skin
    lungs: tuple[Lung, Lung]  # right, left
    air: Region  # aerated lung
    heart: Heart
    aorta_yx: tuple[float, float]
    aorta_radius: float
    choices: dict[tuple[int, int], int] = dataclasses.field(default_factory=dict)  # of each sign, counted
    chosen: Counter[int] = dataclasses.field(default_factory=Counter)

    def draw(self, sign: int, region: Region, hu: float | Volume, *, change_hu: float = 30.0) -> None:
        """Fill `region` with `hu`; voxels that change by more than `change_hu` show the sign."""
        at = np.flatnonzero(region)
        voxels = self.hu.reshape(-1)
        new = hu.reshape(-1)[at] if isinstance(hu, np.ndarray) else np.float32(hu)
        self.owner.reshape(-1)[at[np.abs(voxels[at] - new) > change_hu]] = sign
        voxels[at] = new

    def visible(self, sign: int) -> Region:
        """Return the voxels that show the sign."""
        return np.asarray(self.owner == sign)

    def choose(self, sign: int, worth: Sequence[float] | Region) -> int:
        """Return the index of the greatest worth; a phantom that is drawn again keeps its `choices`.

        All in which one sign heeds others goes through here: a sign stays where it is when another is left
        out.
        """
        key = (sign, self.chosen[sign])
        self.chosen[sign] += 1
        return self.choices.setdefault(key, int(np.argmax(worth)))

    def spot(
        self,
        sign: int,
        rng: np.random.Generator,
        side: int,
        height: tuple[float, float],
        spread: float = 0.7,
        depth: float = 0.7,
    ) -> Point:
        """Return a point in aerated lung of `side`, inside the lung's ellipsoid shrunk to `depth`.

        `height` is a range along z, `spread` a limit along y and x, both in units of the lung's radii.
        """
        lung = self.lungs[side]
        low = np.array([height[0], -spread, -spread])
        high = np.array([height[1], spread, spread])
        tries = np.array(lung.centre) + rng.uniform(low, high, (48, 3)) * np.array(lung.radii)
        cells = np.clip(np.round(tries).astype(int), 0, np.array(SIZE_ZYX) - 1)
        z, y, x = cells.T
        good = self.air[z, y, x] & (self.owner[z, y, x] < 0) & (lung.level[z, y, x] < depth)
        return np.asarray(tries[self.choose(sign, good)], dtype=np.float64)


def ring(
    body: Body,
    at: Point,
    outer: float,
    inner: float,
    wall_hu: float,
    *,
    sign: int | None = None,
    reach: float = 1.6,
    lumen_hu: float = -970.0,
) -> None:
    """Draw an airway along z around `at`; radii and `reach` in voxels."""
    half = np.array([reach, outer, outer])
    low = np.maximum(np.ceil(at - half), 0).astype(int)
    high = np.minimum(np.floor(at + half) + 1, SIZE_ZYX).astype(int)
    box = tuple(slice(start, stop) for start, stop in zip(low, high, strict=True))
    distance = np.square(ys[:, box[1]] - at[1]) + np.square(xs[:, :, box[2]] - at[2])
    hu = np.where(distance < inner**2, np.float32(lumen_hu), np.float32(wall_hu))
    region = (distance < outer**2) & body.air[box]
    if sign is not None:
        changed = region & (np.abs(body.hu[box] - hu) > 30)
        body.owner[box][changed] = sign
    np.copyto(body.hu[box], hu, where=region)
