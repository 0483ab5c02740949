"""Rules that write a report without a look: learnt from training alone, and the line that they draw."""

import dataclasses

import numpy as np
import pytest
from evidcore_plugin_reports.blind import best_findings
from evidcore_plugin_reports.evaluation import ReportEvaluation
from evidcore_plugin_reports.task import ReportTask
from evidcore_testing.data import save_nifti

from evidcore.api import Case, Finding, Report, TextPart, VolumeRef
from evidcore.builtin.views import Volume

NAMES = ("emphysema", "lung nodule", "cardiomegaly", "hernia")


def prompt(index, present, words="", path="absent.nii"):
    """Ask for the report of a patient with these findings; `words` stand in the prompt."""
    case = Case(
        id=f"case-{index}", patient=f"patient-{index}", volumes=(VolumeRef(path=path),),
        report=Report(text=" ".join(f"There is {name}." for name in present) or "Clear."),
        findings=tuple(
            Finding(name=name, state="present" if name in present else "absent") for name in NAMES
        ),
    )  # fmt: skip
    (asked,) = ReportTask().prompts(case, Volume(), 0)
    return dataclasses.replace(asked, parts=(*asked.parts, TextPart(text=words)))


def population(count, told=lambda present: "", first=0):
    """Each second patient has emphysema, each third a nodule too, each fifth cardiomegaly alone."""
    every = []
    for index in range(first, first + count):
        present = [NAMES[2]] if index % 5 == 0 else [NAMES[0]] * (index % 2) + [NAMES[1]] * (index % 3 == 0)
        every.append(prompt(index, present, told(present)))
    return every


def test_without_a_hint_the_best_constant_is_said():
    rule, said = best_findings(population(20, first=100), population(60))
    assert len(set(said)) == 1
    assert said[0] <= {*NAMES}
    assert "nearest" not in rule


@pytest.mark.parametrize(
    "told",
    [
        lambda present: "indication: " + " and ".join(present),
        lambda present: "cough" if NAMES[0] in present else "oedema" if NAMES[2] in present else "fall",
    ],
    ids=["findings", "hints"],
)
def test_what_the_words_give_away_is_taken(told):
    asked = population(20, told, first=100)
    _, said = best_findings(asked, population(60, told))
    right = [NAMES[0] in one.case.present() for one in asked]
    assert [NAMES[0] in one for one in said] == right


def test_a_scanner_that_goes_with_a_finding_is_taken(tmp_path):
    paths = [
        str(save_nifti(tmp_path / f"{mm}.nii.gz", np.zeros((4, 4, 4)), (mm, 1.0, 1.0))) for mm in (1.0, 5.0)
    ]

    def scanned(count, first=0):
        return [
            prompt(index, NAMES[:1] if index % 2 else NAMES[1:2], path=paths[index % 2])
            for index in range(first, first + count)
        ]

    rule, said = best_findings(scanned(6, first=100), scanned(40))
    assert "header" in rule
    assert said == [frozenset(NAMES[1:2]), frozenset(NAMES[:1])] * 3


def test_what_is_asked_teaches_nothing():
    asked, training = population(20, first=100), population(60)
    healthy = [dataclasses.replace(one, case=dataclasses.replace(one.case, findings=())) for one in asked]
    assert best_findings(asked, training) == best_findings(healthy, training)
    assert best_findings(asked, healthy) is None


def test_the_line_stands_in_the_rows_and_is_scored_as_reports_are():
    asked, training = population(20, first=100), population(60)
    blind = ReportEvaluation().references(asked, lambda: training, ReportTask(), "report")
    rows = {row.metric: row for row in blind.rows}
    assert set(rows) == {"blind_findings_f1_micro", "blind_findings_f1_macro"}
    assert rows["blind_findings_f1_micro"].note.startswith(f"best blind rule: {blind.rule}")
    assert len(blind.values) == 20
    assert 0.2 < sum(blind.values) / 20 < 0.9
