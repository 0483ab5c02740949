"""An ellipsoid on a voxel grid: which share of each voxel it fills."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]
Box = tuple[slice, slice, slice]

FINEST_SHARE = 1 / 12  # of the shortest radius: a sample lies this near to the next
MOST_SAMPLES = 24  # along one axis of a voxel


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Ellipsoid:
    """Where a lesion lies and how it is turned; all in mm along z, y, x from the first voxel's centre."""

    centre_mm: Array
    radii_mm: Array
    axes: Array  # (3, 3), each column the direction of one radius

    @property
    def volume_ml(self) -> float:
        """Return 4/3 pi abc."""
        return float(4 / 3 * np.pi * np.prod(self.radii_mm) / 1000)

    def reach_mm(self) -> Array:
        """Return how far it reaches from its centre along z, y and x."""
        return np.asarray(np.sqrt(np.square(self.axes * self.radii_mm).sum(axis=1)))

    def depth(self, points_mm: Array) -> Array:
        """Return how far out each point lies, last axis z, y, x: 0 at the centre, 1 on the surface."""
        inward = (points_mm - self.centre_mm) @ (self.axes / self.radii_mm)
        return np.asarray(np.sqrt(np.square(inward).sum(axis=-1)))


def draw(rng: np.random.Generator, centre_mm: Array, size_mm: float) -> Ellipsoid:
    """Draw an ellipsoid of the given longest diameter, the others 75 to 100 % of it, turned at random."""
    radii = size_mm / 2 * np.array([1.0, *rng.uniform(0.75, 1.0, 2)])
    axes, triangle = np.linalg.qr(rng.standard_normal((3, 3)))
    return Ellipsoid(centre_mm=centre_mm, radii_mm=radii, axes=axes * np.sign(np.diag(triangle)))


def box_around(
    shape: Ellipsoid,
    size_zyx: tuple[int, int, int],
    spacing_mm_zyx: tuple[float, float, float],
    rim_mm: float,
) -> Box:
    """Return the voxels within `rim_mm` of an ellipsoid, cut at the grid's edges."""
    spacing = np.array(spacing_mm_zyx)
    low = np.floor((shape.centre_mm - shape.reach_mm() - rim_mm) / spacing).astype(int)
    high = np.ceil((shape.centre_mm + shape.reach_mm() + rim_mm) / spacing).astype(int) + 1
    (z0, y0, x0), (z1, y1, x1) = np.maximum(low, 0), np.minimum(high, size_zyx)
    return slice(int(z0), int(z1)), slice(int(y0), int(y1)), slice(int(x0), int(x1))


def filled(shape: Ellipsoid, box: Box, spacing_mm_zyx: tuple[float, float, float]) -> Array:
    """Return which share of each voxel of `box` (z, y, x) lies inside, 0..1, by sampling within voxels."""
    steps = np.array(spacing_mm_zyx)
    places = [np.arange(part.start, part.stop) * step for part, step in zip(box, steps, strict=True)]
    centres = np.stack(np.meshgrid(*places, indexing="ij"), axis=-1)
    # in units of the radii a voxel reaches at most this far from its centre
    reach = np.sqrt(np.square(steps).sum()) / 2 / shape.radii_mm.min()
    depth = shape.depth(centres)
    share = (depth < 1).astype(np.float64)
    edge = np.abs(depth - 1) <= reach
    finest = shape.radii_mm.min() * FINEST_SHARE
    within = np.stack(
        np.meshgrid(
            *[
                ((np.arange(count) + 0.5) / count - 0.5) * step
                for step in steps
                for count in [int(np.clip(np.ceil(step / finest), 6, MOST_SAMPLES))]
            ],
            indexing="ij",
        ),
        axis=-1,
    ).reshape(-1, 3)
    on_edge = centres[edge]
    few = max(1, 2_000_000 // len(within))  # voxels at a time, for memory
    parts = [
        (shape.depth(on_edge[first : first + few, None] + within) < 1).mean(axis=1)
        for first in range(0, len(on_edge), few)
    ]
    share[edge] = np.concatenate([np.zeros(0), *parts])
    return share
