"""Metric `looks`: valid calls, how much of a lesion was shown, and IoU with the square around it."""

import numpy as np
import pytest
from evidcore_plugin_medvr.looks import Looks
from evidcore_plugin_medvr.tools import Zoom
from evidcore_plugin_medvr.zoom_first import FirstLook, ZoomChoice
from evidcore_plugin_tables.table import Table
from evidcore_testing import check_metric
from PIL import Image

from evidcore.builtin.choice import Choice
from evidcore.builtin.views import Slices
from evidcore.case import Action, TextPart, Turn
from evidcore.contracts import TextSample
from evidcore.registry.factory import build

VIEW = Slices(slices=1)


@pytest.fixture
def gold(cases, folder):
    """Give the prompt and the turn that looks at the lesion's square."""
    task = ZoomChoice(VIEW, folder, tool=Zoom(VIEW), look=FirstLook(boxes="findings", smallest_side=0.125))
    [prompt] = task.prompts(cases[0], VIEW, 0)
    return prompt, task.gold_turns(prompt)[0]


def measured(folder, prompt, *turns):
    text = TextSample(
        case=prompt.case, asked=prompt.written(), text="", reference=None, turns=turns, shown=prompt.crops()
    )
    [result] = Looks(folder)([text])
    return result.figures


def turn(prompt, box):
    arguments = {"slice": prompt.crops()[0].box_zyx[0], "box": box}
    action = Action(tool="zoom", arguments=arguments)
    return Turn(text="", actions=(action,), reply=Zoom(VIEW)(arguments, prompt))


def test_it_keeps_the_contract_of_a_metric(folder):
    check_metric(Looks(folder))


def test_the_square_itself_is_the_best_look_and_the_whole_slice_points_at_nothing(gold, folder):
    prompt, looked = gold
    best = {"valid_calls": 1.0, "zoom_cover": 1.0, "zoom_iou": 1.0}
    assert measured(folder, prompt, looked) == best
    whole = turn(prompt, [0, 0, 1000, 1000])
    for turns in ((whole,), (looked, looked, whole)):
        assert measured(folder, prompt, *turns) == best | {"zoom_iou": pytest.approx(1 / 64)}


def test_who_calls_nothing_or_wrongly_has_looked_nowhere(gold, folder):
    action = Action(tool="zoom", arguments={}, error="no")
    wrong = Turn(text="", actions=(action,), reply=(TextPart(text="error"),))
    for turns in ((), (wrong,)):
        figures = {"valid_calls": 0.0, "zoom_cover": 0.0, "zoom_iou": 0.0}
        assert measured(folder, gold[0], *turns) == figures


def test_a_case_without_masks_has_calls_alone(unannotated, folder):
    [prompt] = ZoomChoice(VIEW, folder, tool=Zoom(VIEW)).prompts(unannotated, VIEW, 0)
    assert measured(folder, prompt, turn(prompt, [0, 0, 500, 500])) == {"valid_calls": 1.0}


def test_bounding_boxes_of_a_table_are_looked_for_like_masks(tmp_path):
    Image.fromarray(np.zeros((160, 320), np.uint8)).save(tmp_path / "a.png")
    (tmp_path / "questions.csv").write_text(
        "id,image,patient,split,question,A,B,answer,nodule,boxes\n"
        "q,a.png,p,test,Is there a nodule?,yes,no,A,1,nodule=100 40 120 60; nodule=120 60 140 80\n"
    )
    given = {"recipe_folder": tmp_path, "cache_folder": tmp_path / "cache"}
    table = build("dataset", {"use": "table", "path": ".", "findings": ["nodule"]}, given=given, where="test")
    assert isinstance(table, Table)
    (case,) = table.cases("test")
    [prompt] = Choice().prompts(case, VIEW, 0)
    figures = measured(tmp_path, prompt, turn(prompt, [375, 250, 625, 500]))
    # shown: x 120 to 200, y 40 to 80; the square: x 100 to 140, y 40 to 80; they share 20 x 40 of its 40 x 40
    assert figures == {"valid_calls": 1.0, "zoom_cover": 0.5, "zoom_iou": 800 / (3200 + 1600 - 800)}
