import itertools

import pytest
from evidcore_plugin_reports.agreement import compare_details, compare_findings, states
from evidcore_plugin_reports.labelers import Phrases
from evidcore_plugin_reports.scorers import FindingsF1
from evidcore_testing.checks_text import check_scorer

from evidcore.api import Finding
from evidcore.contracts import LabelError


@pytest.mark.parametrize("scorer", [FindingsF1(), FindingsF1(scope="candidate", labeler=Phrases())])
def test_it_keeps_the_contract_of_a_scorer(scorer):
    check_scorer(scorer)


def finding(name, state="present"):
    return Finding(name=name, state=state)


def test_f1_is_two_hits_over_hits_and_misses_for_every_pair_of_sets():
    names = ["a", "b", "c"]
    every = [set(some) for count in range(4) for some in itertools.combinations(names, count)]
    for ours, theirs in itertools.product(every, every):
        agreement = compare_findings(map(finding, ours), map(finding, theirs))
        if ours or theirs:
            precision = len(ours & theirs) / len(ours) if ours else 0
            recall = len(ours & theirs) / len(theirs) if theirs else 0
            wanted = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
        else:
            wanted = 1.0
        assert agreement.f1 == pytest.approx(wanted)
        assert agreement.score().value == agreement.f1


def test_present_wins_over_uncertain_and_uncertain_over_absent():
    told = [finding("a", "absent"), finding("a", "uncertain"), finding("b"), finding("b", "absent")]
    assert states(told) == {"a": "uncertain", "b": "present"}


def test_known_only_leaves_out_what_the_reference_does_not_speak_of():
    ours, theirs = [finding("a"), finding("z")], [finding("a")]
    assert compare_findings(ours, theirs).extra == ("z",)
    assert compare_findings(ours, theirs, known_only=True).f1 == 1.0


def test_scope_candidate_judges_only_what_the_candidate_speaks_of():
    report = "There is emphysema. There is a lung nodule. There is cardiomegaly. No hiatal hernia."
    think = "A emphysema present. B hiatal hernia absent. C consolidation absent."
    assert FindingsF1()([think], [report]) == [pytest.approx(2 / 4)]
    spoken = FindingsF1(scope="candidate")
    assert spoken([think, "A emphysema absent.", "nothing at all"], [report] * 3) == [1.0, 0.0, 0.0]


class Counting(Phrases):
    """Tells what it was given, and cannot read what holds a question mark."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def __call__(self, text):
        self.asked.append(text)
        if "?" in text:
            raise LabelError("a text with a question mark")
        return super().__call__(text)


def test_a_text_is_read_once_and_an_unread_one_again():
    labeler = Counting()
    scorer = FindingsF1(labeler=labeler)
    think, report = "There is emphysema.", "There is emphysema. No mass."
    assert scorer([think, think, "?"], [report] * 3) == [1.0, 1.0, None]
    assert labeler.asked == [think, "?", report]
    assert scorer([think, "?"], [report] * 2) == [1.0, None]
    assert labeler.asked == [think, "?", report, "?"]


def test_details_are_compared_where_the_reference_knows_them_and_both_affirm():
    known = [
        Finding(name="cyst", side="both", malignant=False, location="kidney"),
        Finding(name="tumour", side="left", malignant=True),
        Finding(name="stone", location="gallbladder"),
        Finding(name="clot", state="absent"),
    ]
    said = [
        Finding(name="cyst", side="left", malignant=False),
        Finding(name="cyst", side="right", location="liver"),
        Finding(name="tumour", side="right", malignant=True),
        Finding(name="tumour", malignant=False),
        Finding(name="clot", side="left"),
        Finding(name="stone", state="uncertain", location="gallbladder"),
    ]
    assert compare_details(said, known) == {
        "cyst": {"side": True, "malignant": True, "location": False},
        "tumour": {"side": False, "malignant": False},  # said to be both
    }
    assert compare_details([Finding(name="tumour")], known) == {"tumour": {"side": False, "malignant": False}}
    assert compare_details([], known) == {}
