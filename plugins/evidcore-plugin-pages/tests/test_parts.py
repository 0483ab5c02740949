"""Numbers, markup, and which cases are shown."""

import json
import re

import pytest
from evidcore_plugin_pages.cases import chosen_answers, chosen_groups, look_up, pattern
from evidcore_plugin_pages.markup import Html, data_block, number, tag, written
from evidcore_plugin_pages.record import read_head
from evidcore_plugin_pages.tables import with_tasks
from evidcore_testing.recipes import recipe_text

from evidcore.api import Crop, VolumeRef


@pytest.mark.parametrize(
    ("value", "unit", "said"),
    [(0.7623, "rate", "76.2 %"), (-0.0424, "points", "\N{MINUS SIGN}4.2"), (0.5172, "points", "+51.7"),
     (0.52849, "score", "0.528"), (1234, "count", "1\u202f234"), (59.94, "seconds", "59.9 s"),
     (3725.0, "seconds", "1 h 02 min"), (float("nan"), "rate", "not finite"), (1.07654, "plain", "1.077")],
)  # fmt: skip
def test_numbers_read_as_their_unit(value, unit, said):
    assert written(value, unit) == said


def test_what_was_not_measured_is_a_dash_not_zero():
    assert "not measured" in number(None, "rate")
    assert "0" not in number(None, "rate")


def test_text_is_escaped_and_markup_is_not():
    assert tag("p", "<b>", Html("<i>x</i>"), title='"') == '<p title="&#34;">&lt;b&gt;<i>x</i></p>'
    assert tag("b", None, class_="a", data_x=1) == '<b class="a" data-x="1"></b>'


def test_data_blocks_cannot_be_ended_from_inside():
    block = data_block({"a": "</script><!--"})
    assert block.count("</script>") == 1
    assert json.loads(re.findall(">(.*)</script>", block)[0]) == {"a": "</script><!--"}


def group(step, *totals, malformed=None):
    return {"step": step, "rollouts": [{"total": total, "malformed": malformed} for total in totals]}


def test_groups_are_chosen_for_what_they_show(tmp_path):
    broken = group(5, 0, 9, malformed="no tags")
    lines = [group(1, 0, 1), group(1, 0, 3), broken, group(7, 2, 2), group(9, 1, 2)]
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    shown = {item.why: item.line for item in chosen_groups(path)}
    assert shown == {
        "The widest group of the last step": lines[4],
        "The widest group of the first step": lines[1],
        "The widest group with a malformed answer": lines[2],
        "A dead group: equal rewards, so it taught nothing": lines[3],
    }


def test_no_group_is_shown_twice(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps(group(1, 1, 1, malformed="no tags")) + "\n")
    assert len(chosen_groups(path)) == 1


def answers(*correct):
    conditions = ("own", "other-patient", "blank")
    return {name: {"correct": value} for name, value in zip(conditions, correct, strict=False)}


@pytest.mark.parametrize(
    ("correct", "said"),
    [((True,), "right"), ((False,), "wrong"), ((None,), None),
     ((True, False), "right only with its own volume"), ((True, True), "right either way"),
     ((False, True), "right only with another patient's volume"), ((False, False), "wrong either way")],
)  # fmt: skip
def test_a_question_is_told_by_how_it_fared(correct, said):
    assert pattern(answers(*correct)) == said


def test_answers_are_chosen_one_of_each_pattern_from_different_cases():
    lines = [
        {"prompt_id": f"p{n}", "case_id": f"c{n // 2}", "task": "choice", "condition": c, "correct": right}
        for n, both in enumerate([(True, True), (False, False), (True, True), (True, False), (True, False)])
        for c, right in zip(("own", "other-patient"), both, strict=True)
    ]
    chosen = chosen_answers(lines)
    assert [item.why for item in chosen] == ["Right only with its own volume", "Right either way"]
    assert [next(iter(item.answers.values()))["prompt_id"] for item in chosen] == ["p3", "p0"]


def test_rows_of_an_audit_learn_their_task_from_its_margin():
    own = ("own volumes", "strict_accuracy")
    rows = [own, ("choice", "grounding_margin"), own, ("other", "grounding_margin"), ("other", "prior_only")]
    found = with_tasks({"rows": [{"name": name, "metric": metric} for name, metric in rows]})
    assert [row["task"] for row in found] == ["choice", "choice", "other", "other", "other"]


def test_a_case_is_looked_up_in_the_data_sets_of_its_own_task(bare_run, tmp_path):
    """Two data sets have a case of the same id, as two that generate phantoms do."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "scan.nii").touch()
        (tmp_path / name / "cases.csv").write_text("id,volume,patient,split\ncase,scan.nii,p,test\n")
    names = ("first", "second")
    data = [{"dataset": name, "task": f"{name}-task", "split": "test"} for name in names]
    tables = {name: {"use": "folder", "path": str(tmp_path / name)} for name in names}
    recipe = recipe_text({"kind": "evaluate", "data": data}, dataset=tables)
    (bare_run.folder / "resolved.toml").write_text(recipe)
    uri = Crop(volume=VolumeRef(path=str(tmp_path / "second" / "scan.nii"), intensity="hu")).uri()
    line = {"stage": "01-evaluate", "task": "second-task", "case_id": "case", "images": [uri]}
    known, faults = look_up(read_head(bare_run.folder), [line])
    assert faults == []
    assert [ref.path for ref in known["case"].case.volumes] == [str(tmp_path / "second" / "scan.nii")]
