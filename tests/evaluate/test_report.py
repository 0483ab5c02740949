from __future__ import annotations

import json

import pytest
from sklearn.metrics import f1_score

from evidcore.builtin.labelers import Phrases
from evidcore.builtin.report import ReportTask
from evidcore.builtin.views import Volume
from evidcore.case import Case, Finding, Report, TextPart, VolumeRef
from evidcore.contracts import Policy
from evidcore.evaluate.report import evaluate_report

NAMES = ("emphysema", "lung nodule", "cardiomegaly")


class Written(Policy):
    def __init__(self, reports):
        self.reports = dict(reports)

    def generate(self, prompts, *, max_new_tokens, temperature=0.0):
        return [self.reports[prompt.case.id] for prompt in prompts]

    def log_likelihoods(self, prompts, completions):
        raise NotImplementedError("reports are read, not weighed")


def case(name, present, uncertain=(), patient=None):
    states = {item: "present" if item in present else "absent" for item in NAMES}
    states |= dict.fromkeys(uncertain, "uncertain")
    return Case(
        id=name,
        patient=patient or name,
        volumes=(VolumeRef(path=f"{name}.nii"),),
        report=Report(text="Given."),
        findings=tuple(Finding(name=item, state=state) for item, state in states.items()),
    )


def evaluated(cases, reports, **options):
    prompts = [prompt for item in cases for prompt in ReportTask().prompts(item, Volume(), 0)]
    return evaluate_report(Written(reports), prompts, ReportTask(), max_new_tokens=50, **options)


CASES = [
    case("a", NAMES[:1]), case("b", NAMES[:2]), case("c", ()), case("d", NAMES[1:2]), case("e", NAMES[:1]),
]  # fmt: skip
REPORTS = {
    "a": "Emphysema. No cardiomegaly.",
    "b": "There is emphysema.",
    "c": "There is cardiomegaly.",
    "d": "There is a lung nodule. There is emphysema.",
    "e": "Clear.",
}


def test_f1_agrees_with_scikit_learn():
    result = evaluated(CASES, REPORTS)
    truth = [[name in item.present() for name in NAMES] for item in CASES]
    said = [[1, 0, 0], [1, 0, 0], [0, 0, 1], [1, 1, 0], [0, 0, 0]]
    rows = {row["metric"]: row for row in result.rows()}
    assert rows["findings_f1_micro"]["value"] == pytest.approx(f1_score(truth, said, average="micro"))
    by_name = f1_score(truth, said, average=None, zero_division=0)
    assert rows["findings_f1/emphysema"]["value"] == pytest.approx(by_name[0])
    assert rows["findings_f1/lung nodule"]["value"] == pytest.approx(by_name[1])
    assert "findings_f1/cardiomegaly" not in rows  # no case has it
    assert rows["findings_f1_macro"]["value"] == pytest.approx((by_name[0] + by_name[1]) / 2)
    assert rows["findings_f1_macro"]["note"] == "mean over 2 findings"


def test_what_a_case_doubts_or_does_not_know_is_left_out():
    result = evaluated(
        [case("a", NAMES[:1], uncertain=NAMES[1:2])], {"a": "Emphysema. Lung nodule. Consolidation."}
    )
    assert result.f1().value == 1.0


def test_answers_tell_what_was_said_and_what_was_so():
    (answer,) = evaluated(CASES[:1], REPORTS, labeler=Phrases(), condition="blank").answers
    line = json.loads(json.dumps(answer.line()))
    assert (line["affirmed"], line["present"]) == (["emphysema"], ["emphysema"])
    assert line["absent"] == ["lung nodule", "cardiomegaly"]
    assert (line["condition"], line["images"]) == ("blank", ["a.nii#intensity=hu"])


def test_an_empty_report_is_malformed_and_affirms_nothing():
    result = evaluated(CASES[:2], {"a": "", "b": "There is emphysema."})
    rows = {row["metric"]: row["value"] for row in result.rows()}
    assert rows["format_rate"] == 0.5
    assert rows["findings_f1_micro"] == pytest.approx(2 / 4)  # 1 hit, 2 missed


def test_the_interval_clusters_by_patient():
    cases = [case(f"c{n}", NAMES[n % 2 : n % 2 + 1], patient=f"p{n // 2}") for n in range(60)]
    reports = {f"c{n}": "There is emphysema." if n % 3 else "Clear." for n in range(60)}
    interval = evaluated(cases, reports).f1()
    assert (interval.patients, interval.values) == (30, 60)
    assert interval.low < interval.value < interval.high


def test_cases_without_findings_have_no_f1():
    bare = Case(id="z", patient="p", volumes=(VolumeRef(path="z.nii"),), report=Report(text="Given."))
    with pytest.raises(ValueError, match="no findings are known of case 'z'"):
        evaluated([bare], {"z": "Clear."})
    with pytest.raises(ValueError, match="no report"):
        evaluated([], {})


def test_a_line_says_what_was_asked_and_where_the_pixels_stood():
    line = evaluated(CASES[:1], REPORTS).answers[0].line()
    [prompt] = ReportTask().prompts(CASES[0], Volume(), 0)
    words = "".join(part.text for part in prompt.parts if isinstance(part, TextPart))
    assert line["prompt"].replace("<image>", "") == words
    assert (line["prompt"].count("<image>"), line["prompt_id"]) == (1, prompt.id)
