"""Occlusion maps in the viewer: cells on slices compared with their voxels, files, switches and pixels."""

import contextlib
import json
import os
import shutil

import numpy as np
import pytest
from evidcore_plugin_pages import gallery
from evidcore_plugin_view import overlay
from evidcore_plugin_view.opened_run import OpenedRun
from evidcore_plugin_view.question_scene import Reference, compose
from test_overlay import painted

from evidcore.api import Crop, VolumeRef
from evidcore.runs.folder import read_lines

EDGES = ((0, 2, 5), (0, 4, 6, 8), (0, 10))
DROPS = (0.1, -0.2, None, 0.4, 0.0, 0.2)
SHAPE = (5, 8, 10)
RED, YELLOW = (255, 84, 112), (255, 225, 77)  # maps of sides A and B


def map_of(drops, largest):
    """The overlay of a map over a scan, and how strongly each voxel should be drawn."""
    found = {
        "image": Crop(volume=VolumeRef(path="scan.nii")).uri(),
        "grid": {"edges_zyx": EDGES},
        "drops": drops,
        "largest": None if largest is None else {"cell": largest},
    }
    (item,) = overlay.of_drops(found, "a", "scan.nii")
    strength = np.zeros(SHAPE)
    boxes = [(*z, *y, *EDGES[2]) for z in ((0, 2), (2, 5)) for y in ((0, 4), (4, 6), (6, 8))]
    for (z0, z1, y0, y1, x0, x1), drop in zip(boxes, drops, strict=True):
        strength[z0:z1, y0:y1, x0:x1] = round(255 * max(0.0, drop or 0.0) / 0.4)
    return item, strength


@pytest.mark.parametrize("plane", ["axial", "coronal", "sagittal"])
def test_cells_are_shaded_by_their_share_of_the_largest_drop(plane):
    item, strength = map_of(DROPS, 3)
    drawn = overlay.voxels(item, None, SHAPE)
    assert drawn.dtype == np.uint8
    assert (drawn == strength).all()
    seen = []
    for index in range(strength.shape[gallery.AXES[plane]]):
        expected = gallery.cut(strength, plane, index)
        shape = overlay.shape(item, drawn, plane, index)
        assert (shape is not None) == expected.any()
        if shape is not None:
            seen.append(index)
            result = sum(share * painted(path, expected.shape) for path, share in shape["shades"])
            assert result == pytest.approx(expected / 255)
            assert shape["outline"] == gallery.outline(expected == 255)
    assert overlay.extent(item, drawn, plane) == (seen, {"axial": 3, "coronal": 2, "sagittal": 5}[plane])


def test_the_legend_says_what_the_colours_are():
    assert map_of(DROPS, 3)[0].legend.endswith("with this cell covered. Full colour: 0.4 nats a token.")
    nothing, _ = map_of((0.0,) * 6, None)
    assert nothing.legend == "The answer stays as likely whichever cell is covered."
    assert nothing.boxes == ()


def line_of(answer, cell, drop=0.5):
    """A map of 2 x 2 x 2 cells in which one alone matters."""
    drops = [drop * (number == cell) for number in range(8)]
    return {
        **{name: answer[name] for name in ("prompt_id", "task", "case_id", "text")},
        "image": answer["images"][0],
        "grid": {"shape_zyx": [2, 2, 2], "edges_zyx": [[0, 20, 40], [0, 48, 96], [0, 64, 128]]},
        "drops": drops,
        "largest": {"cell": cell, "drop": drop},
    }


def first_of(run, stage, task):
    """Return the number and the line of a run's first answer of a task."""
    lines = enumerate(read_lines(run / f"answers/{stage}.jsonl"))
    return next((number, line) for number, line in lines if line["task"] == task)


@pytest.fixture
def mapped(looked, tmp_path):
    """A copy of the run in which the first question about a place has a map on both sides."""
    copy = tmp_path / "looked" / looked.name
    shutil.copytree(looked, copy)
    (copy / "occlusion").mkdir()
    for stage, cell in (("02-evaluate", 7), ("04-evaluate", 0)):
        _, pointing = first_of(copy, stage, "point")
        (copy / f"occlusion/{stage}.jsonl").write_text(json.dumps(line_of(pointing, cell)) + "\n")
    return copy


def maps(run, task="point"):
    """Return the maps in the scene of a run's first answer of a task."""
    number, _ = first_of(run, "02-evaluate", task)
    reference = Reference(run="a", kind="answers", stage="02-evaluate", number=number)
    with contextlib.closing(OpenedRun(run, show_reports=False)) as opened:
        overlays = compose({"a": opened}, [reference]).overlays
    return [item for item in overlays if item.role == "occlusion"]


def test_a_map_is_there_and_drawn_at_first_where_the_file_holds_the_question(mapped, looked):
    (item,) = maps(mapped)
    assert (item.id, item.asked) == ("a/occlusion/occlusion", False)  # a box is drawn already
    assert maps(mapped, task="tell") == []
    assert maps(looked) == []
    path = mapped / "answers/02-evaluate.jsonl"
    lines = read_lines(path)
    for line in lines:
        if line["task"] == "point":
            line |= {"slice": None, "boxes": [], "gold_slice": None}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (item,) = maps(mapped)
    assert item.asked  # drawn at first, where nothing else is


def test_a_map_of_another_answer_is_not_drawn_and_a_new_file_is_read(mapped, tmp_path):
    path = mapped / "occlusion/02-evaluate.jsonl"
    answer = first_of(mapped, "02-evaluate", "point")[1] | {"stage": "02-evaluate"}
    run = OpenedRun(mapped, show_reports=False)
    assert run.occlusion(answer)["largest"]["cell"] == 7
    assert run.occlusion({**answer, "text": "another"}) is None
    assert run.occlusion({**answer, "condition": "blank"}) is None
    path.write_text(json.dumps(line_of(answer, 2)) + "\n")
    os.utime(path, ns=(1, 1))
    assert run.occlusion(answer)["largest"]["cell"] == 2


@pytest.mark.slow
def test_each_side_has_its_map_and_it_is_switched_on_and_off(browser, serve, mapped, open_page):
    reader = open_page(browser, serve(mapped))
    page = reader.page
    page.select_option('[data-pick="task"]', "point")
    reader.ready()
    switches = {side: page.locator(f'input[data-overlay="{side}/occlusion/occlusion"]') for side in "ab"}
    switches["a"].wait_for()
    reader.ready()
    assert not switches["a"].is_checked()  # there are boxes and a mask
    assert "Full colour: 0.5 nats a token" in page.locator(".switch.occlusion .legend").first.inner_text()

    def show(side):
        page.click(f'.switch.occlusion:has(input[data-overlay="{side}/occlusion/occlusion"]) button')
        clear = {plane: reader.colours(plane) for plane in ("axial", "coronal", "sagittal")}
        switches[side].check()
        return clear, {plane: reader.colours(plane) for plane in clear}

    clear, shaded = show("a")  # z 20 to 40, y 48 to 96, x 64 to 128: the head is up
    assert is_painted(clear["axial"], shaded["axial"], RED) == [[0, 0], [0, 1]]
    assert is_painted(clear["coronal"], shaded["coronal"], RED) == [[0, 1], [0, 0]]
    assert is_painted(clear["sagittal"], shaded["sagittal"], RED) == [[0, 1], [0, 0]]
    switches["a"].uncheck()
    assert (reader.colours() == clear["axial"]).all()
    clear, shaded = show("b")  # the first cell
    assert is_painted(clear["axial"], shaded["axial"], YELLOW) == [[1, 0], [0, 0]]
    switches["a"].check()
    assert (reader.colours() == shaded["axial"]).all()  # its cell is not on this slice


def is_painted(clear, shaded, colour):
    """Whether each quarter of a picture has a colour over it, or has not changed at all."""
    expected = 0.3 * clear + 0.7 * np.array(colour)
    painted = np.abs(shaded - expected).sum(axis=2) < 24
    kept = np.abs(shaded - clear).sum(axis=2) < 12
    result = []
    for some, same in zip(np.array_split(painted, 2), np.array_split(kept, 2), strict=True):
        halves = zip(np.array_split(some, 2, axis=1), np.array_split(same, 2, axis=1), strict=True)
        shares = [(item.mean(), other.mean()) for item, other in halves]
        assert all(max(pair) > 0.85 for pair in shares), shares  # lines and letters lie over it
        result.append([int(item > other) for item, other in shares])
    return result


@pytest.mark.slow
@pytest.mark.usefixtures("with_niivue")
def test_a_map_is_drawn_in_3d_each_cell_as_strongly_as_its_share(browser, serve, mapped, open_page):
    path = mapped / "occlusion/02-evaluate.jsonl"
    line = json.loads(path.read_text())
    line["drops"][4] = 0.1  # a fifth of the largest, at y 0 to 48, x 0 to 64
    path.write_text(json.dumps(line) + "\n")
    reader = open_page(browser, serve(mapped))
    reader.go("#task=point&scan=3d")
    page, name = reader.page, "a/occlusion/occlusion"
    switch = page.locator(f'input[data-overlay="{name}"]')
    switch.wait_for(timeout=120_000)
    page.wait_for_function("() => !document.querySelector('.waiting')", timeout=120_000)
    page.keyboard.press("m")  # nothing else is drawn
    page.click(f'.switch.occlusion:has(input[data-overlay="{name}"]) button')

    def drawn(is_on):
        page.wait_for_function(
            "(drawn) => document.querySelector('.volume')?.dataset.drawn === drawn",
            arg=name if is_on else "",
            timeout=120_000,
        )
        page.mouse.move(2, 2)
        page.wait_for_timeout(500)
        return reader.shot(".volume")

    clear = drawn(False)
    switch.check()
    shaded = drawn(True)
    height, width = (length // 2 for length in clear.shape[:2])
    axial = slice(height, None), slice(None, width)  # left and below
    added = ((shaded - clear) @ [1, -0.5, -0.5])[axial]  # the same over any grey
    y, x = np.argwhere((clear.max(axis=2) > 60)[axial]).mean(axis=0).astype(int)  # the middle of the body
    quarters = [added[:y, :x], added[:y, x:], added[y:, :x], added[y:, x:]]
    full = 0.45 * (RED[0] - (RED[1] + RED[2]) / 2)
    result = [np.percentile(item[4:-4, 4:-4], 90) / full for item in quarters]
    assert result == pytest.approx([0.2, 0, 0, 1], abs=0.08)
    switch.uncheck()
    assert np.abs(drawn(False) - clear).mean() < 1
