"""Cells over a scan, compared with loops over their voxels."""

import numpy as np
import pytest
from evidcore_plugin_audit.cell_grid import CellGrid, grid_over

from evidcore.data import Geometry

GEOMETRY = Geometry(shape_zyx=(7, 10, 12), affine=np.diag([5.0, 2.0, 1.0, 1.0]))


@pytest.mark.parametrize("cells", [(1, 1, 1), (2, 3, 4), (7, 10, 12), (3, 10, 5)])
def test_the_cells_hold_each_voxel_once_in_raster_order(cells):
    grid = grid_over(GEOMETRY, cells)
    assert grid.shape_zyx == cells
    held = np.zeros(GEOMETRY.shape_zyx, dtype=int)
    for z0, z1, y0, y1, x0, x1 in grid.boxes:
        held[z0:z1, y0:y1, x0:x1] += 1
    assert (held == 1).all()
    assert grid.boxes == sorted(grid.boxes)


def test_a_size_in_mm_gives_the_nearest_number_of_cells():
    grid = grid_over(GEOMETRY, (4, 6, 6), cell_mm=10.0)  # the scan is 35 x 20 x 12 mm
    assert grid.shape_zyx == (4, 2, 1)
    assert grid_over(GEOMETRY, (4, 6, 6), cell_mm=1000.0).shape_zyx == (1, 1, 1)


@pytest.mark.parametrize("seed", range(3))
def test_a_cell_is_touched_where_a_voxel_of_the_region_lies_in_it(seed):
    region = np.random.default_rng(seed).random(GEOMETRY.shape_zyx) > 0.99
    grid = grid_over(GEOMETRY, (2, 3, 4))
    looped = [bool(region[z0:z1, y0:y1, x0:x1].any()) for z0, z1, y0, y1, x0, x1 in grid.boxes]
    assert grid.touched(region) == looped
    assert any(looped)


def test_a_coarse_region_touches_the_cells_of_its_middles():
    grid = CellGrid(((0, 4, 8), (0, 8), (0, 2, 4, 8)))
    region = np.zeros((2, 2, 2), dtype=bool)
    region[1, 0, 0] = True  # voxels 4 to 8, 0 to 4, 0 to 4
    assert grid.touched(region, (4, 4, 4)) == [False, False, False, False, True, False]
