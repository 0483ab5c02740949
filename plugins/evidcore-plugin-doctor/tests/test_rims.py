import numpy as np
import pytest
from evidcore_plugin_doctor.rims import interpolated
from scipy import ndimage


def ball(radius, z=20, y=20, x=20):
    return np.linalg.norm(np.indices((40, 40, 60)) - np.reshape((z, y, x), (3, 1, 1, 1)), axis=0) < radius


MANY = np.select([ball(7, z, y, x) for z in (9, 30) for y in (9, 30) for x in (9, 30, 50)], range(20, 32))
TOUCHING = np.where(ball(12), 1, 2 * ball(12, x=42))
WALLS = [np.where(ball(12), 3, 2 * ball(12 + width)) for width in (1, 2, 3, 5)]
DRAWN = [ball(0), ball(9), np.where(ball(5), 2, ball(15)), *WALLS]


@pytest.mark.parametrize("factors", [0.8, 1.25, 2, (2, 1, 1), (0.9, 0.7, 0.7)])
@pytest.mark.parametrize("labels", [ball(12) + 2 * ball(12, x=46), TOUCHING, MANY, 255 * ball(15)])
def test_a_map_that_was_resampled_linearly_is_told_and_by_nearest_neighbours_is_not(labels, factors):
    linear, nearest = (ndimage.zoom(labels.astype(np.float32), factors, order=order) for order in (1, 0))
    assert interpolated(labels) is interpolated(nearest.astype(np.uint8)) is None
    assert "lead through a label between" in interpolated(np.round(linear).astype(np.uint8))


def test_walls_and_tumours_within_organs_are_drawn_so():
    assert not any(interpolated(labels.astype(np.uint8)) for labels in DRAWN)
