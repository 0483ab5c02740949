from __future__ import annotations

from evidcore_plugin_doctor.texts import TEMPLATE_PATIENTS, compare

NORMAL = (
    "No pleural effusion. The heart is of normal size. Trachea and main bronchi are open. No nodule is seen."
)


def told(number: int) -> str:
    """A report of its own: 30 words that nobody else has."""
    return " ".join(f"word{number}x{index}" for index in range(30)) + " " + NORMAL


def pairs(reports, patients=None):
    patients = patients or [f"p{number}" for number in range(len(reports))]
    return [(item.first, item.second, round(item.share, 2)) for item in compare(reports, patients).alike]


def test_reports_of_their_own_are_not_alike():
    assert pairs([told(number) for number in range(30)]) == []


def test_a_copy_is_found_whatever_its_case_and_spaces():
    reports = [told(0), told(1), told(0).upper().replace(" ", "  ")]
    assert pairs(reports) == [(0, 2, 1.0)]


def test_an_edited_copy_is_found_with_its_share():
    edited = told(0).replace("word0x15", "changed")
    # of 45 runs of five words in each, the five over the changed word differ
    words = len(told(0).split())
    runs = words - 4
    assert pairs([told(0), edited]) == [(0, 1, round((runs - 5) / (runs + 5), 2))]


def test_copies_of_one_patient_are_no_fault():
    assert pairs([told(0), told(0)], ["p", "p"]) == []


def test_a_text_that_many_patients_share_is_a_template():
    reports = [NORMAL] * TEMPLATE_PATIENTS + [told(1)]
    found = compare(reports, [f"p{number}" for number in range(len(reports))])
    assert (found.alike, found.templates) == ((), 1)
    few = compare(reports[1:], [f"p{number}" for number in range(len(reports) - 1)])
    assert few.templates == 0


def test_a_copy_made_of_what_everybody_says_is_no_fault():
    everybody = [told(number) for number in range(6)]
    assert pairs([*everybody, NORMAL, NORMAL]) == []


def test_a_short_report_is_never_a_copy():
    assert pairs(["No finding in the chest.", "No finding in the chest."]) == []


def test_an_empty_report_is_no_copy_of_another():
    assert pairs(["...", "..."]) == []


def test_each_copy_is_told_once_with_the_first():
    assert pairs([told(0), told(0), told(0)]) == [(0, 1, 1.0), (0, 2, 1.0)]
