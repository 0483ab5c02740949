import dataclasses

import pytest
from evidcore_plugin_reports.labelers import Phrases
from evidcore_plugin_reports.reward import ReportFindings
from evidcore_plugin_reports.scorers import FindingsF1
from evidcore_plugin_reports.task import ReportTask
from evidcore_testing.checks_reward import answer_group, check_reward

from evidcore.api import Answer, Case, Finding, Report, Unscored, VolumeRef
from evidcore.builtin.choice import Choice
from evidcore.builtin.views import Volume

CASE = Case(
    id="a", patient="p", volumes=(VolumeRef(path="a.nii"),), report=Report(text="There is emphysema."),
    findings=(*(Finding(name=name) for name in ("emphysema", "lung nodule")),
              *(Finding(name=name, state="absent") for name in ("cardiomegaly", "hiatal hernia")),
              Finding(name="consolidation", state="uncertain")),
)  # fmt: skip


def rollouts(task, *texts, case=CASE):
    return answer_group(task, *task.prompts(case, Volume(), 1), texts)


CHOICE = Choice(think=False, options_per_question=2)


@pytest.mark.parametrize(
    ("report", "value"),
    [
        ("There is emphysema. There is a lung nodule. No cardiomegaly.", 1.0),
        ("There is emphysema.", 2 / 3),  # 1 hit, 1 missed
        ("There is emphysema. There is cardiomegaly.", 2 / 4),  # 1 hit, 1 extra, 1 missed
        ("Clear lungs.", 0.0),
        ("Emphysema. Lung nodule. Consolidation. Bronchiectasis.", 1.0),  # doubted and unknown ones left out
        ("", 0.0),
    ],
)
def test_report_findings_is_f1_against_the_case(report, value):
    for labeler in (None, Phrases()):
        (score,) = ReportFindings(labeler=labeler)(rollouts(ReportTask(), report), {})
        assert score.value == pytest.approx(value)


UNREADABLE = ["", "Zork zork.", "Please see above.", "Die Lunge ist ohne Befund.", "<report></report>"]
UNREADABLE += ["Deutlicher Pleuraerguss links. Herz normal groß.", "Derrame pleural. No. Corazón normal."]
NORMAL = ["Clear lungs.", "Normal study.", "No acute abnormality.", "Unremarkable.", "There is no emphysema."]
NORMAL += ["Normal chest CT.", "Normal.", "Findings:\nThe liver\nis normal."]


@pytest.mark.parametrize("report", UNREADABLE + NORMAL)
def test_of_a_normal_case_only_a_text_that_is_read_earns_anything(report):
    absent = tuple(dataclasses.replace(item, state="absent") for item in CASE.findings)
    normal = dataclasses.replace(CASE, report=Report(text="Normal."), findings=absent)
    rollout = dataclasses.replace(rollouts(ReportTask(), "x", case=normal)[0], text=report)
    rollout = dataclasses.replace(rollout, answer=Answer(text=report, report=report))
    (score,) = ReportFindings()([rollout], {})
    assert score.value == float(report in NORMAL)
    assert ("nothing of it was read" in score.reason) == (report in UNREADABLE)
    assert FindingsF1()([report, "Clear lungs."], ["No nodule.", report]) == (
        [1.0, 1.0] if report in NORMAL else [0.0, None]
    )


def test_report_findings_says_what_differs():
    (score,) = ReportFindings()(rollouts(ReportTask(), "Emphysema. Cardiomegaly."), {})
    assert score.reason == "both: emphysema; extra: cardiomegaly; missed: lung nodule"
    assert score.parts == {"both": 1, "extra": 1, "missed": 1}


def test_report_findings_pays_for_details_where_told():
    nodule = Finding(name="lung nodule", side="left")
    case = Case(id="s", patient="p", volumes=(), report=Report(text="x"), findings=(nodule,))
    reports = rollouts(ReportTask(), "Lung nodule on the left.", "Lung nodule on the right.", case=case)
    assert [score.value for score in ReportFindings(details=["side"])(reports, {})] == [1.0, 0.0]
    assert [score.value for score in ReportFindings()(reports, {})] == [1.0, 1.0]


def test_report_findings_does_not_apply_to_choices_or_unknown_cases():
    bare = Case(id="b", patient="p", volumes=(), report=Report(text="Clear."))
    for given, reason in (
        (rollouts(CHOICE, "x"), "the task asks for a letter, not for a report"),
        (rollouts(ReportTask(), "Clear.", case=bare), "no findings are known of case 'b'"),
    ):
        assert ReportFindings()(given, {}) == [Unscored(kind="not-applicable", reason=reason)]


def test_it_keeps_the_contract_of_a_reward():
    reports = rollouts(ReportTask(), "There is emphysema.", "Emphysema. Lung nodule.")
    check_reward(ReportFindings(), reports, rollouts(ReportTask(), "Clear.", "There is cardiomegaly."))
