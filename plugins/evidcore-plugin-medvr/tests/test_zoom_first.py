"""Tasks `zoom-choice` and `zoom-free-text`: looks before answers, where boxes lie, and what is refused."""

import json

import pytest
from evidcore_plugin_medvr.rollout import ToolCall
from evidcore_plugin_medvr.tools import Zoom
from evidcore_plugin_medvr.zoom_first import FirstLook, ZoomChoice, ZoomFreeText
from evidcore_testing import check_task

from evidcore.api import DataError, VisualPart, read, read_mask
from evidcore.builtin.views import Slices, Volume

VIEW = Slices(slices=1)


@pytest.fixture
def task(tmp_path):
    def make(**options):
        return ZoomChoice(VIEW, tmp_path, tool=Zoom(VIEW), look=FirstLook(**options))

    return make


@pytest.mark.parametrize("boxes", ["random", "findings"])
def test_it_keeps_the_contract_of_a_task(task, cases, boxes):
    check_task(task(boxes=boxes), VIEW, cases, garbage=["", "<answer>Z</answer>"])


def test_the_same_looks_stand_before_free_text(tmp_path, cases):
    task = ZoomFreeText(VIEW, tmp_path, tool=Zoom(VIEW), look=FirstLook(boxes="findings"))
    check_task(task, VIEW, cases, garbage=["", "<answer></answer>"])
    [prompt] = task.prompts(cases[0], VIEW, 3)
    assert (prompt.task, "A)" in prompt.words()) == ("zoom-free-text", False)
    assert task.gold(prompt)[0] == f"<answer>{prompt.reference['answers'][0]}</answer>"
    assert len(task.gold_turns(prompt)) == 1


def test_gold_calls_are_calls_that_a_rollout_carries_out(task, cases):
    zoom = task()
    [prompt] = zoom.prompts(cases[0], VIEW, 3)
    assert prompt.task == "zoom-choice"
    [turn] = zoom.gold_turns(prompt)
    told = turn.text.removeprefix("<tool_call>").removesuffix("</tool_call>")
    assert json.loads(told) == {"name": "zoom", "arguments": turn.actions[0].arguments}
    result = ToolCall([Zoom(VIEW)]).tools["zoom"](turn.actions[0].arguments, prompt)
    assert result == turn.reply
    assert isinstance(turn.reply[1], VisualPart)


def test_random_boxes_lie_anywhere_and_come_again_with_their_seed(task, cases):
    zoom = task(smallest_side=0.2, largest_side=0.5)

    def box(case, seed):
        [prompt] = zoom.prompts(case, VIEW, seed)
        return tuple(zoom.gold_turns(prompt)[0].actions[0].arguments["box"])

    drawn = {(case.id, seed): box(case, seed) for case in cases for seed in range(20)}
    assert len(set(drawn.values())) == len(drawn)
    assert box(cases[2], 7) == drawn[cases[2].id, 7]
    sides = [x1 - x0 for x0, _, x1, _ in drawn.values()]
    assert 195 <= min(sides) < 240 < 460 < max(sides) <= 505
    assert all(abs((x1 - x0) - (y1 - y0)) <= 2 for x0, y0, x1, y1 in drawn.values())
    for edges in zip(*drawn.values(), strict=True):
        assert max(edges) - min(edges) > 350  # all over the slice


def test_boxes_around_findings_hold_the_lesion(task, cases):
    zoom = task(boxes="findings", smallest_side=0.125)
    for case in cases:
        [prompt] = zoom.prompts(case, VIEW, 0)
        crop = zoom.gold_turns(prompt)[0].reply[1].crop
        z0, z1, y0, y1, x0, x1 = crop.box_zyx
        assert (z1 - z0, y1 - y0, x1 - x0) == (1, 64, 64)
        [finding] = case.present()
        lesion = read_mask(case.masks[finding], like=read(case.volumes[0]))[z0]
        assert lesion[y0:y1, x0:x1].sum() == lesion.sum() > 0


def test_without_masks_no_box_lies_around_a_finding_and_a_whole_volume_has_none(task, unannotated):
    zoom = task(boxes="findings")
    [prompt] = zoom.prompts(unannotated, VIEW, 0)
    with pytest.raises(DataError, match=r"has no mask of a present finding .* Use boxes = 'random'"):
        zoom.gold_turns(prompt)
    assert task().gold_turns(prompt)
    [whole] = zoom.prompts(unannotated, Volume(), 0)
    with pytest.raises(DataError, match=r"shows no single slice, and a box lies on one. Use view = "):
        task().gold_turns(whole)
