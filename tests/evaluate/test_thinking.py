from __future__ import annotations

import pytest

from evidcore.builtin.choice import Choice
from evidcore.builtin.views import Volume
from evidcore.case import Case, Question, Report, VolumeRef
from evidcore.contracts import Measured, Metric
from evidcore.evaluate.choice import measure_thinking
from evidcore.evaluate.measuring import NamedMetric
from evidcore.registry.factory import build


class Words(Metric):
    """Counts words, and keeps what it was shown."""

    unit = "plain"
    reads = frozenset({"think"})

    def __call__(self, texts):
        self.shown = list(texts)
        return [Measured(figures={"words": float(len(one.text.split()))}) for one in texts]


@pytest.fixture
def metric(offered):
    offered("evid-words", "[evidcore.metric]\nwords = evid_words:Words\n", Words=Words)
    return build("metric", {"use": "words"}, given={}, where="test")


CASE = Case(
    id="a",
    patient="p",
    volumes=(VolumeRef(path="a.nii"),),
    report=Report(text="No emphysema."),
    questions=(Question(id="q", text="Which?", options=("a", "b", "c", "d"), answer=0),),
)


def test_thinking_is_measured_against_the_report_of_the_case(metric):
    (prompt,) = Choice().prompts(CASE, Volume(), 0)
    answers = ["<think>it shows nothing</think><answer>A</answer>", "<answer>A</answer>"]
    found = measure_thinking([NamedMetric(metric=metric, name="words")], [prompt] * 2, answers, Choice())
    assert [one.text for one in metric.shown] == ["it shows nothing", ""]
    assert {one.reference.text for one in metric.shown} == {"No emphysema."}
    assert metric.shown[0].asked == prompt.written()
    (row,) = found.rows("choice", ["p", "p"])
    assert (row.metric, row.value, row.unit) == ("words", 1.5, "plain")


def test_where_nobody_thinks_nothing_is_measured(metric):
    (prompt,) = Choice(think=False).prompts(CASE, Volume(), 0)
    named = [NamedMetric(metric=metric, name="words")]
    found = measure_thinking(named, [prompt], ["<answer>A</answer>"], Choice(think=False))
    assert found.rows("choice", ["p"]) == []
    assert not hasattr(metric, "shown")


def test_a_scorer_says_how_well_thoughts_agree_with_reports():
    table = {"use": "scorer", "name": "", "scorer": {"use": "findings-f1", "scope": "candidate"}}
    metric = build("metric", table, given={"labeler": None, "recipe_folder": None}, where="test")
    (prompt,) = Choice().prompts(CASE, Volume(), 0)
    answers = [
        "<think>There is no emphysema.</think><answer>A</answer>",
        "<think>There is emphysema.</think><answer>A</answer>",
    ]
    found = measure_thinking([NamedMetric(metric=metric, name="scorer")], [prompt] * 2, answers, Choice())
    (row,) = found.rows("choice", ["p", "p"])
    assert (row.metric, row.value, row.unit) == ("findings_f1", 0.5, "score")
