import pytest
from evidcore_plugin_doctor.check import TEMPLATE_PATIENTS, compare_reports

NORMAL = (
    "No pleural effusion. The heart is of normal size. Trachea and main bronchi are open. No nodule is seen."
)


def told(number: int) -> str:
    """A report of its own: 30 words that nobody else has."""
    return " ".join(f"word{number}x{index}" for index in range(30)) + " " + NORMAL


def pairs(reports, patients=None):
    patients = patients or [f"p{number}" for number in range(len(reports))]
    return [(item.first, item.second, round(item.share, 2)) for item in compare_reports(reports, patients)[0]]


@pytest.mark.parametrize(
    ("reports", "patients", "alike"),
    [
        ([told(number) for number in range(30)], None, []),
        ([told(0), told(1), told(0).upper().replace(" ", "  ")], None, [(0, 2, 1.0)]),
        ([told(0), told(0)], ["p", "p"], []),
        ([*(told(number) for number in range(6)), NORMAL, NORMAL], None, []),  # what everybody says
        (["No finding in the chest."] * 2, None, []),  # too short
        (["...", "..."], None, []),
        ([told(0)] * 3, None, [(0, 1, 1.0), (0, 2, 1.0)]),  # each copy once, with the first
    ],
)
def test_copies_are_found_whatever_their_case_and_spaces(reports, patients, alike):
    assert pairs(reports, patients) == alike


def test_an_edited_copy_is_found_with_its_share():
    edited = told(0).replace("word0x15", "changed")
    # of 45 runs of five words in each, the five over the changed word differ
    words = len(told(0).split())
    runs = words - 4
    assert pairs([told(0), edited]) == [(0, 1, round((runs - 5) / (runs + 5), 2))]


def test_a_text_that_many_patients_share_is_a_template():
    reports = [NORMAL] * TEMPLATE_PATIENTS + [told(1)]
    owners = [f"p{number}" for number in range(len(reports))]
    assert compare_reports(reports, owners) == ([], 1)
    assert compare_reports(reports[1:], owners[1:]) == ([], 0)
