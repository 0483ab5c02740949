"""Rows of the list: scores, findings, what went wrong."""

import pytest
from evidcore_plugin_pages.record import findings_of
from evidcore_plugin_view.public_lines import group_row, score_of


@pytest.mark.parametrize(
    ("line", "score"),
    [
        ({"correct": True, "value": 0.2}, 1.0),
        ({"correct": False}, 0.0),
        ({"correct": None, "value": 0.25}, 0.25),
        ({"figures": {"dsc": 0.5, "iou": 0.3}}, 0.5),  # an audit's lines have no value
        ({"figures": {"iou": 0.3}}, None),
        ({"value": None}, None),
        ({"value": float("nan")}, None),
        ({"value": True}, None),
    ],
)
def test_a_score_is_the_verdict_else_the_value_else_the_headline_figure(line, score):
    assert score_of(line, {"dsc"}) == score


def test_a_question_is_about_its_finding_its_target_or_what_is_present():
    assert findings_of({"finding": "cyst", "present": ["other"]}) == ["cyst"]
    assert findings_of({"target": "liver"}) == ["liver"]
    assert findings_of({"target": {"slice": 3}, "present": ["a", "b"]}) == ["a", "b"]
    assert findings_of({}) == []


def test_a_group_tells_its_totals():
    rollouts = [{"total": 1.0, "malformed": None}, {"total": 0.0, "malformed": "no tags"}, {"total": None}]
    row = group_row({"prompt_id": "p", "case_id": "c", "task": "t", "step": 3, "rollouts": rollouts})
    assert [row[name] for name in ("rollouts", "mean", "spread", "zeros", "malformed")] == [3, 0.5, 0.5, 1, 1]
    empty = group_row({"rollouts": []})
    assert (empty["mean"], empty["spread"]) == (None, None)  # missing is not zero
