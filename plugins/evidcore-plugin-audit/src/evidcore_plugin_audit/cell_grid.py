"""A grid of cells over a scan: their boxes in voxels, and which cells a region touches."""

import dataclasses
import itertools
from typing import Any

import numpy as np

from evidcore.data import Geometry
from evidcore.errors import RunError

Region = np.ndarray[Any, np.dtype[np.bool_]]
BoxZYX = tuple[int, int, int, int, int, int]  # z0, z1, y0, y1, x0, x1: starts included, stops excluded


@dataclasses.dataclass(frozen=True)
class CellGrid:
    """Cells between edges in voxels of the scan, in raster order: x changes first, z last."""

    edges_zyx: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]

    @property
    def shape_zyx(self) -> tuple[int, int, int]:
        z, y, x = (len(edges) - 1 for edges in self.edges_zyx)
        return z, y, x

    @property
    def boxes(self) -> list[BoxZYX]:
        spans = [list(itertools.pairwise(edges)) for edges in self.edges_zyx]
        return [(*z, *y, *x) for z, y, x in itertools.product(*spans)]

    def touched(self, region: Region, voxels_per_step: tuple[int, int, int] = (1, 1, 1)) -> list[bool]:
        """Return whether a part of a region lies in each cell.

        The region, shape (z, y, x), begins at the scan's first voxel; a voxel of it is `voxels_per_step` of
        the scan's long.
        """
        result = np.zeros(self.shape_zyx, dtype=np.bool_)
        middles = (np.argwhere(region) + 0.5) * voxels_per_step
        axes = zip(self.edges_zyx, middles.T, strict=True)
        places = [np.searchsorted(edges, along, side="right") - 1 for edges, along in axes]
        result[tuple(places)] = True
        return [bool(item) for item in result.ravel()]


def grid_over(geometry: Geometry, cells_zyx: tuple[int, int, int], cell_mm: float = 0.0) -> CellGrid:
    """Return a grid over a whole scan.

    `cell_mm` is a size in place of the number of cells; each axis has as many as come nearest to it.
    """
    counts: list[int] = list(cells_zyx)
    if cell_mm:
        lengths = zip(geometry.shape_zyx, geometry.spacing_mm_zyx, strict=True)
        counts = [max(1, round(voxels * step / cell_mm)) for voxels, step in lengths]
    for axis, count, voxels in zip("zyx", counts, geometry.shape_zyx, strict=True):
        if count > voxels:
            what = f"{count} cells along {axis}, where the scan has {voxels} voxels"
            raise RunError(f"--cells: {what}. Take fewer.")
    z, y, x = (
        tuple(place * voxels // count for place in range(count + 1))
        for count, voxels in zip(counts, geometry.shape_zyx, strict=True)
    )
    return CellGrid((z, y, x))
