"""What an evaluate stage can score."""

import dataclasses

import pytest
from evidcore.run.stages import scored_as

from evidcore.builtin.report import ReportTask
from evidcore.builtin.views import Volume
from evidcore.case import Answer, Box, Case, Evidence, Finding, Question, Report, VolumeRef
from evidcore.errors import RecipeError
from evidcore.registry.factory import build

CASE = Case(
    id="a",
    patient="a",
    volumes=(VolumeRef(path="/none"),),
    report=Report(text="No emphysema."),
    findings=(Finding(name="emphysema", state="absent"),),
    questions=(Question(id="q", text="Which?", options=("a", "b", "c", "d"), answer=0),),
)


class Side(ReportTask):
    """Asks for a word, which is neither a choice nor a report."""

    def gold(self, prompt):
        return "left", ()

    def parse(self, prompt, completion):
        return Answer(text=completion)


@pytest.fixture
def side(offered):
    offered("evid-side", "[evidcore.task]\nside = evid_side:It\n", It=Side)
    return build("task", {"use": "side"}, given={}, where="test")


@pytest.mark.parametrize("kind", ["choice", "report"])
def test_choices_and_reports_are_told_apart(kind):
    task = build("task", {"use": kind}, given={}, where="test")
    assert scored_as(task, task.prompts(CASE, Volume(), 0)) == kind


def test_a_task_that_reads_neither_is_refused_by_name(side):
    prompts = side.prompts(CASE, Volume(), 0)
    said = (
        rf"'side' from evid-side 1.0\): prompt '{prompts[0].id}' has no options, and its gold answer is read"
    )
    with pytest.raises(RecipeError, match=said):
        scored_as(side, prompts)


class Boxed(Side):
    """Asks for a box."""

    def parse(self, prompt, completion):
        box = Box(z=0, y0=0, y1=1, x0=0, x1=1)
        return Answer(text=completion, evidence=Evidence(slice=0, boxes=(box,)))


def test_boxes_are_a_segmentation_where_masks_are_named_that_answer(offered):
    offered("evid-boxed", "[evidcore.task]\nboxed = evid_boxed:It\n", It=Boxed)
    task = build("task", {"use": "boxed"}, given={}, where="test")
    (prompt,) = task.prompts(CASE, Volume(), 0)
    named = dataclasses.replace(prompt, reference={"masks": ["liver"]})
    assert scored_as(task, [named]) == "segmentation"
    with pytest.raises(RecipeError, match="as no report and as no boxes of named masks"):
        scored_as(task, [prompt])
