"""Shapes on slices, compared with the voxels that they stand for."""

import dataclasses
import re

import numpy as np
import pytest
from evidcore_plugin_pages import gallery
from evidcore_plugin_view import overlay
from evidcore_plugin_view.overlay import Overlay

from evidcore.api import Crop, MaskRef, VolumeRef

PATH = "/scan.nii.gz"


def painted(path, shape):
    """The pixels inside the closed rectangles of an SVG path."""
    found = np.zeros(shape, dtype=bool)
    for left, top, right, bottom in re.findall(r"M(\d+) (\d+)H(\d+)V(\d+)H\d+Z", path):
        found[int(top) : int(bottom), int(left) : int(right)] = True
    return found


@pytest.mark.parametrize("seed", range(5))
def test_the_filled_area_is_the_mask(seed):
    mask = np.random.default_rng(seed).random((7, 9)) > 0.5
    assert (painted(overlay.filled(mask), mask.shape) == mask).all()


@pytest.mark.parametrize("plane", ["axial", "coronal", "sagittal"])
def test_a_box_is_drawn_where_the_same_box_as_a_mask_is(plane):
    mask = np.zeros((6, 8, 10), dtype=bool)
    mask[1:3, 2:5, 4:9] = True
    box = Overlay(name="box", role="predicted", boxes=((1, 3, 2, 5, 4, 9),))
    masked = Overlay(name="mask", role="truth", mask=MaskRef(path="m"))
    drawn = overlay.voxels(box, None, mask.shape)
    assert overlay.voxels(masked, mask, mask.shape) is mask
    assert overlay.extent(box, drawn, plane) == overlay.extent(masked, mask, plane)
    for index in range(mask.shape[gallery.AXES[plane]]):
        shape, shape_of_mask = (overlay.shape(*pair, plane, index) for pair in ((box, drawn), (masked, mask)))
        seen = gallery.cut(mask, plane, index)
        assert (shape is not None) == (shape_of_mask is not None) == seen.any()
        if shape is not None:
            assert shape == {"outline": gallery.outline(seen), "fill": "", "shades": []}
            assert shape_of_mask["outline"] == shape["outline"]
            assert (painted(shape_of_mask["fill"], seen.shape) == seen).all()


def test_the_head_is_up_on_coronal_and_sagittal_slices():
    array = np.arange(24).reshape(2, 3, 4)
    assert gallery.cut(array, "axial", 1).tolist() == array[1].tolist()
    assert gallery.cut(array, "coronal", 2).tolist() == [array[1, 2].tolist(), array[0, 2].tolist()]
    assert gallery.cut(array, "sagittal", 3).tolist() == [array[1, :, 3].tolist(), array[0, :, 3].tolist()]


def test_the_fullest_slice_shows_most_of_a_mask():
    mask = np.zeros((5, 4, 4), dtype=bool)
    mask[1, 0, 0] = mask[3, :2] = True
    item = Overlay(name="m", role="truth", mask=MaskRef(path="m"))
    assert overlay.extent(item, mask, "axial") == ([1, 3], 3)
    assert overlay.extent(item, np.zeros_like(mask), "axial") == ([], None)
    slices = Overlay(name="s", role="predicted", slices=(4,))
    assert overlay.extent(slices, np.zeros_like(mask), "axial") == ([4], 4)
    assert overlay.extent(slices, np.zeros_like(mask), "coronal") == ([], None)


def test_an_answer_gives_what_it_said_what_is_right_and_what_was_shown():
    crop = Crop(volume=VolumeRef(path=PATH, intensity="hu"))
    line = {
        **{"slice": 3, "gold_slice": 4, "slices": {"cyst": 2, "none": None}, "gold_slices": {"cyst": 1}},
        "boxes": [{"z": 3, "y0": 1, "y1": 2, "x0": 4, "x1": 6}],
        "images": [crop.cut((z, z + 1, 0, 8, 0, 8)).uri() for z in (0, 2)],
        "turns": [{"crops": [crop.cut((3, 4, 2, 4, 2, 4)).uri()]}],
    }
    found = {one.id: one for one in overlay.of_answer(line, "b", PATH)}
    assert found["b/predicted/box"].boxes == ((3, 4, 1, 2, 4, 6),)
    assert found["b/predicted/slice"].slices == (3,)
    assert found["b/predicted/slice cyst"].slices == (2,)
    assert found["case/truth/right slice"].slices == (4,)
    assert found["case/truth/right slice cyst"].slices == (1,)
    assert found["b/shown/slices shown"].slices == (0, 2)
    assert found["b/looked-at/look 1"].boxes == ((3, 4, 2, 4, 2, 4),)
    assert "b/predicted/slice none" not in found
    elsewhere = overlay.of_answer({**line, "boxes": [], "slice": None}, "b", "/other.nii.gz")
    assert {one.role for one in elsewhere} == {"truth", "predicted"}  # crops of another scan are not drawn


def test_a_rollout_gives_the_mask_that_its_task_read_and_points_at_nothing_without_evidence():
    assert overlay.of_rollout({"text": "x"}, "a", PATH) == []
    assert overlay.of_rollout({"evidence": None}, "a", PATH) == []
    mask = MaskRef(path="m.nii.gz", label=3)
    rollout = {"evidence": {"slice": None, "slices": {}, "boxes": [], "mask": dataclasses.asdict(mask)}}
    (found,) = overlay.of_rollout(rollout, "a", PATH)
    assert (found.id, found.mask) == ("a/predicted/mask", mask)


def test_masks_that_the_question_is_about_come_first():
    masks = {name: MaskRef(path=name) for name in ("liver", "cyst", "spleen")}
    found = overlay.of_masks(masks, ["cyst", "absent"])
    assert [(one.name, one.asked) for one in found] == [("cyst", True), ("liver", False), ("spleen", False)]
