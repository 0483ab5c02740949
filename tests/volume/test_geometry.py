from __future__ import annotations

import numpy as np

from evidcore.volume import Geometry


def geometry(shape=(4, 5, 6), spacing=(3.0, 2.0, 1.0), origin=(10.0, 20.0, 30.0)) -> Geometry:
    affine = np.diag([*spacing, 1.0])
    affine[:3, 3] = origin
    return Geometry(shape_zyx=shape, affine=affine)


def test_the_gap_between_grids_is_measured_at_the_worst_corner_in_voxels():
    # 1 % more spacing in x: the far corner, 5 voxels out, lies 0.05 mm = 0.05 voxels away
    assert np.isclose(geometry().apart_voxels(geometry(spacing=(3.0, 2.0, 1.01))), 0.05)
    # 0.6 mm in z is 0.2 voxels of 3 mm
    assert np.isclose(geometry().apart_voxels(geometry(origin=(10.6, 20.0, 30.0))), 0.2)


def test_grids_fit_up_to_a_tenth_of_a_voxel():
    assert geometry().fits(geometry(origin=(10.2, 20.0, 30.0)))
    assert not geometry().fits(geometry(origin=(10.4, 20.0, 30.0)))
    assert not geometry().fits(geometry(shape=(4, 5, 7)))


def test_a_geometry_says_what_a_reader_needs():
    assert str(geometry()) == "4x5x6 voxels of 3x2x1 mm from (10.0, 20.0, 30.0) mm (z, y, x)"
