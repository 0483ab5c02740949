import random
import re

import pytest
from evidcore_plugin_doctor.check import TEMPLATE_PATIENTS, copied_reports
from evidcore_plugin_doctor.repeats import Home

from evidcore.api import Case, Report

NORMAL = (
    "No pleural effusion. The heart is of normal size. Trachea and main bronchi are open. No nodule is seen."
)


def told(number: int) -> str:
    """A report of its own: 30 words that nobody else has."""
    return " ".join(f"word{number}x{index}" for index in range(30)) + " " + NORMAL


def compared(reports, patients=None):
    cases = [
        Case(id=f"{n}", patient=patients[n] if patients else f"p{n}", volumes=(), report=Report(text=text))
        for n, text in enumerate(reports)
    ]
    return copied_reports([Home("", "train", case) for case in cases])


def pairs(*given):
    found = [(fault, re.search(r"is (\d+) % that", fault.text)) for fault in compared(*given)[0]]
    return [(int(fault.other), int(fault.case), int(s[1]) / 100 if s else 1.0) for fault, s in found]


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
    runs = len(told(0).split()) - 4  # of five words in each; the five over the changed word differ
    assert pairs([told(0), edited]) == [(0, 1, round((runs - 5) / (runs + 5), 2))]


SPACELESS = [("\u4e00\u9fa5", "\u3002"), ("\u3041\u3096", "\u3001"), ("\u0e01\u0e2e", " ")]
USUAL = "\u53cc\u80ba\u7eb9\u7406\u6e05\u6670\uff0c\u5fc3\u5f71\u5927\u5c0f\u6b63\u5e38\u3002"


@pytest.mark.parametrize(("letters", "stop"), SPACELESS)
def test_copies_are_found_in_scripts_without_spaces(letters, stop):
    rng, (first, last) = random.Random(0), map(ord, letters)  # 8 sentences of 12 characters
    texts = [["".join(chr(rng.randint(first, last)) for _ in range(12)) for _ in range(8)] for _ in range(20)]
    copy, *others = [stop.join(sentences) for sentences in texts]
    assert pairs([copy, *others, copy]) == [(0, 20, 1.0)]
    assert 0.8 <= pairs([copy, copy[:30] + letters[0] + copy[30:]])[0][2] < 1
    assert pairs([copy, copy[:40]]) == pairs([USUAL, USUAL]) == []  # as short as what is too short in words


def test_a_text_that_many_patients_share_is_a_template():
    reports = [NORMAL] * TEMPLATE_PATIENTS + [told(1)]
    assert [compared(reports), compared(reports[1:])] == [([], 1), ([], 0)]
