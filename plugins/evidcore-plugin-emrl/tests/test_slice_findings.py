"""Task `slice-findings`: one slice, and what the masks show on it."""

import dataclasses

import pytest
from evidcore_plugin_emrl.cross_view import QUESTION
from evidcore_plugin_emrl.slice_findings import SliceFindings
from evidcore_plugin_reports.reward import ReportFindings
from evidcore_testing import check_task

from evidcore.api import Rollout
from evidcore.builtin.views import Slices

SHOWN = {1: ["cyst"], 2: ["cyst", "stone"], 3: ["stone"]}  # by slice
VIEW = Slices(slices=6)


def drawn(task, case, seeds=range(60)):
    """Return the prompts of some seeds by the slice that they show."""
    result = {}
    for seed in seeds:
        (prompt,) = task.prompts(case, VIEW, seed)
        (crop,) = prompt.crops()
        result.setdefault(crop.box_zyx[0], []).append(prompt)
    return result


def test_it_keeps_the_contract_of_a_task(sick, healthy, tmp_path):
    check_task(SliceFindings(tmp_path), VIEW, [sick, healthy], garbage=["", "...", "7"])


def test_the_gold_answer_names_what_the_masks_show_on_the_slice(sick, tmp_path):
    task = SliceFindings(tmp_path)
    for z, prompts in drawn(task, sick).items():
        text, spans = task.gold(prompts[0])
        named = [f"There is a {name}." for name in SHOWN.get(z, [])]
        assert text == (" ".join(named) or "No finding is seen.")
        assert [text[span.start : span.end] for span in spans] == (named or [text])
        assert {span.label for span in spans} == {"abnormal" if named else "normal"}
        assert prompts[0].parts[-1].text == QUESTION


def test_what_lies_on_other_slices_is_absent_for_rewards_and_evaluation(sick, tmp_path):
    task = SliceFindings(tmp_path)
    (prompt,) = drawn(task, sick)[1][:1]
    assert prompt.case.present() == ("cyst",)
    assert {item.name for item in prompt.case.findings} == {item.name for item in sick.findings}
    cyst, stone = sick.findings
    doubted = (cyst, dataclasses.replace(stone, state="uncertain"))
    (unsure,) = drawn(task, dataclasses.replace(sick, findings=doubted))[1][:1]
    assert unsure.case.findings[1].state == "uncertain"
    reward = ReportFindings(lambda: ("cyst", "stone"))
    both = "There is a cyst. There is a stone."
    values = [
        reward([Rollout(prompt=prompt, group=0, text=text, answer=task.parse(prompt, text))], {})[0].value
        for text in ("There is a cyst.", both, "No finding is seen.")
    ]
    assert values == [1.0, pytest.approx(2 / 3), 0.0]


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_slices_with_a_finding_are_drawn_as_often_as_is_asked(sick, healthy, tmp_path, share):
    task = SliceFindings(tmp_path, seen_share=share)
    assert drawn(task, sick).keys() == ({1, 2, 3} if share else {0, 4, 5})
    assert drawn(task, healthy).keys() == set(range(6))  # none has one: any is drawn
    assert drawn(task, sick, seeds=[3]).keys() == drawn(task, sick, seeds=[3]).keys()


def test_a_finding_without_a_mask_or_unknown_findings_are_not_asked_about(sick, tmp_path):
    task = SliceFindings(tmp_path)
    for case in (
        dataclasses.replace(sick, masks={"cyst": sick.masks["cyst"]}),
        dataclasses.replace(sick, findings=()),
        dataclasses.replace(sick, volumes=sick.volumes * 2),
    ):
        assert task.prompts(case, VIEW, 0) == ()


def test_an_answer_without_a_word_or_with_a_tag_is_malformed(sick, tmp_path):
    task = SliceFindings(tmp_path)
    (prompt,) = task.prompts(sick, VIEW, 0)
    assert task.parse(prompt, " 12 ").malformed == "no words: '12'"
    said = '<tool_call>{"name": "zoom"}</tool_call>'
    assert task.parse(prompt, f"A cyst. {said}").malformed == "prose holds no tags, got <tool_call>"
    assert task.parse(prompt, "No finding is seen.").malformed is None
