"""Prompts and requests of segmenters."""

import numpy as np
import pytest

from evidcore.api import Box
from evidcore.contracts import BoxPrompt, MaskPrompt, MaskRequest, PointPrompt, SegmenterSession, TextPrompt

SHAPE = (4, 6, 8)
POINT = PointPrompt(z=1, y=2, x=3)


def square(z=1):
    mask = np.zeros(SHAPE[1:], dtype=np.bool_)
    mask[2:4, 2:5] = True
    return MaskPrompt(z=z, mask=mask)


def box(z=1, y0=0, y1=2, x0=0, x1=2):
    return BoxPrompt(box=Box(z=z, y0=y0, y1=y1, x0=x0, x1=x1))


@pytest.mark.parametrize(
    ("prompts", "window", "message"),
    [([], None, r"scan.nii: no prompt was given. Give at least one BoxPrompt or PointPrompt or MaskPrompt."),
     ([TextPrompt(words="liver")], None, r"scan.nii: SegmenterSession takes BoxPrompt or PointPrompt or "
      r"MaskPrompt, got TextPrompt\(words='liver'\). Give one of these, or name a segmenter that takes it."),
     ([box(z=4)], None, r"scan.nii: there is no slice 4 for BoxPrompt.*: the volume has slices 0 to 3"),
     ([square(z=-1)], None, r"there is no slice -1 for a mask: .* 0 to 3"),
     ([box(y1=7)], None, r"Box\(z=1, y0=0, y1=7, x0=0, x1=2\) must hold voxels of a slice, .* 6 x 8"),
     ([box(x0=2, x1=2)], None, r"x0=2, x1=2\) must hold voxels"),
     ([PointPrompt(z=1, y=6, x=0)], None, r"PointPrompt\(z=1, y=6, x=0\) must be a voxel .* 6 x 8"),
     ([MaskPrompt(z=1, mask=np.ones((6, 9), dtype=np.bool_))], None,
      r"mask on slice 1 must be bool of the slice's shape \(6, 8\) \(y, x\), got bool of \(6, 9\)"),
     ([MaskPrompt(z=1, mask=np.ones((6, 8)))], None, r"must be bool .* got float64 of \(6, 8\)"),
     ([MaskPrompt(z=1, mask=np.zeros((6, 8), dtype=np.bool_))], None, r"on slice 1 holds no voxel"),
     ([POINT], (2, 2), r"the window \(2, 2\), .* must hold slices of the volume, and lie within \(0, 4\)"),
     ([POINT], (-1, 3), r"the window \(-1, 3\), from start to stop, .* must hold"),
     ([POINT], (0, 5), r"the window \(0, 5\), .* must hold"),
     ([POINT], (2, 4), r"the window \(2, 4\) lacks slice 1"),
     ([POINT, box(z=3)], (1, 3), r"the window \(1, 3\) lacks slice 3")],
)  # fmt: skip
def test_what_cannot_be_used_is_refused_with_its_value(prompts, window, message):
    with pytest.raises(ValueError, match=message):
        SegmenterSession.refuse_unusable(prompts, window, SHAPE, "scan.nii")


class Reading(SegmenterSession):
    takes = (TextPrompt,)


def test_a_session_of_text_takes_text_in_any_window_and_refuses_blanks_and_boxes():
    Reading.refuse_unusable([TextPrompt(words="liver"), TextPrompt(words="7")], (3, 4), SHAPE)
    with pytest.raises(ValueError, match=r"TextPrompt\(words=' \\t'\) names nothing. Give words, such as"):
        Reading.refuse_unusable([TextPrompt(words=" \t")], None, SHAPE)
    with pytest.raises(ValueError, match=r"Reading takes TextPrompt, got MaskPrompt"):
        Reading.refuse_unusable([square()], None, SHAPE)
    with pytest.raises(ValueError, match=r"the window \(4, 5\), .* lie within \(0, 4\)"):
        Reading.refuse_unusable([TextPrompt(words="liver")], (4, 5), SHAPE)


def test_what_lies_inside_is_used():
    edges = [box(z=0, y0=0, y1=6, x0=0, x1=8), PointPrompt(z=3, y=5, x=7), square()]
    SegmenterSession.refuse_unusable(edges, None, SHAPE)
    SegmenterSession.refuse_unusable(edges, (0, 4), SHAPE)


def test_mask_prompts_are_equal_by_their_voxels():
    assert square() == square()
    assert hash(square()) == hash(square())
    other = square()
    other.mask[0, 0] = True
    assert other != square()
    assert square(z=2) != square(z=1)
    assert square() != POINT
    assert len({MaskRequest(prompts=(square(),)), MaskRequest(prompts=(square(),))}) == 1


class Counting(SegmenterSession):
    def __init__(self):
        self.asked = []

    def mask(self, prompts, z_window=None):
        self.asked.append((tuple(prompts), z_window))
        result = np.zeros(SHAPE, dtype=np.bool_)
        for prompt in prompts:
            result[prompt.z] = True
        return result


def test_equal_requests_are_asked_once_and_answered_in_order_with_masks_of_their_own():
    session = Counting()
    item, two = MaskRequest(prompts=(square(z=1),)), MaskRequest(prompts=(box(z=2),), z_window=(0, 3))
    first, second, third = session.masks([item, two, MaskRequest(prompts=(square(z=1),))])
    assert session.asked == [(item.prompts, None), (two.prompts, (0, 3))]
    assert [int(mask.any(axis=(1, 2)).argmax()) for mask in (first, second, third)] == [1, 2, 1]
    first[:] = False
    assert third.any()
