import itertools

import numpy as np
import pytest
from evidcore_plugin_medvol_r1.overlap import box_iou, mask_overlap, matched_iou
from sklearn.metrics import f1_score, jaccard_score

from evidcore.api import Box


def box(y0, y1, x0, x1, z=0):
    return Box(z=z, y0=y0, y1=y1, x0=x0, x1=x1)


def test_mask_overlap_agrees_with_scikit_learn():
    rng = np.random.default_rng(1)
    for share in (0.05, 0.5, 0.95):
        item, other = (rng.random((3, 5, 7)) < share for _ in range(2))
        result = mask_overlap(item, other)
        assert result == pytest.approx((
            f1_score(item.ravel(), other.ravel()),
            jaccard_score(item.ravel(), other.ravel()),
        ))


def test_nothing_against_nothing_is_no_overlap_and_masks_of_two_shapes_are_refused():
    empty, full = np.zeros((2, 2, 2), dtype=bool), np.ones((2, 2, 2), dtype=bool)
    assert mask_overlap(empty, empty) is None
    assert mask_overlap(empty, full) == (0.0, 0.0)
    assert mask_overlap(full, full) == (1.0, 1.0)
    with pytest.raises(ValueError, match=r"got \(2, 2, 2\) and \(2, 2, 3\)"):
        mask_overlap(np.ones((2, 2, 2), dtype=bool), np.ones((2, 2, 3), dtype=bool))


def some_boxes(rng, count):
    edges = [sorted(rng.choice(9, 2, replace=False).tolist()) for _ in range(2 * count)]
    return [box(*rows, *columns) for rows, columns in zip(edges[::2], edges[1::2], strict=True)]


def test_box_iou_is_that_of_the_voxels():
    rng = np.random.default_rng(2)
    for _ in range(300):
        boxes, planes = some_boxes(rng, 2), []
        for each in boxes:
            plane = np.zeros((1, 9, 9), dtype=bool)
            plane[0, each.y0 : each.y1, each.x0 : each.x1] = True
            planes.append(plane)
        assert box_iou(*boxes) == pytest.approx(mask_overlap(*planes)[1])
    assert box_iou(box(0, 4, 0, 4), box(0, 4, 0, 4, z=1)) == 0.0  # on two slices


def test_matching_is_the_best_of_all_pairings():
    rng = np.random.default_rng(3)
    for found_count, wanted_count in itertools.product(range(1, 4), range(1, 4)):
        result, wanted = some_boxes(rng, found_count), some_boxes(rng, wanted_count)
        short, long = sorted((result, wanted), key=len)
        best = max(
            sum(box_iou(item, other) for item, other in zip(short, order, strict=True))
            for order in itertools.permutations(long, len(short))
        )
        assert matched_iou(result, wanted) == pytest.approx(best / len(long))
    assert matched_iou([], wanted) == matched_iou(result, []) == 0.0
