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


def compared(texts, patients=None):
    owners = patients or [f"p{number}" for number in range(len(texts))]
    reports = [{"report": Report(text=text), "patient": who} for text, who in zip(texts, owners, strict=True)]
    cases = [Case(id=f"{number}", volumes=(), **item) for number, item in enumerate(reports)]
    faults, templates = copied_reports([Home("", "train", case) for case in cases])
    shares = [float((re.search(r"is (\d+) % that", fault.text) or [0, 100])[1]) / 100 for fault in faults]
    pairs = zip(faults, shares, strict=True)
    return [(int(fault.other), int(fault.case), share) for fault, share in pairs], templates


COPIES = [  # reports, patients, and which are alike
    ([told(number) for number in range(30)], None, []),
    ([told(0), told(1), told(0).upper().replace(" ", "  ")], None, [(0, 2, 1.0)]),
    ([told(0), told(0)], ["p", "p"], []),
    ([*(told(number) for number in range(6)), NORMAL, NORMAL], None, []),  # what everybody says
    (["No finding in the chest."] * 2, None, []),  # too short
    (["...", "..."], None, []),
    ([told(0)] * 3, None, [(0, 1, 1.0), (0, 2, 1.0)]),  # each copy once, with the first
]


@pytest.mark.parametrize(("reports", "patients", "alike"), COPIES)
def test_copies_are_found_whatever_their_case_and_spaces(reports, patients, alike):
    assert compared(reports, patients)[0] == alike


def test_an_edited_copy_is_found_with_its_share():
    edited = told(0).replace("word0x15", "changed")
    runs = len(told(0).split()) - 4  # of five words in each; the five over the changed word differ
    assert compared([told(0), edited])[0] == [(0, 1, round((runs - 5) / (runs + 5), 2))]


@pytest.mark.parametrize("first", "\u4e00\u3041\u0e01")  # of Han, kana and Thai
def test_copies_are_found_in_scripts_without_spaces(first):
    rng = random.Random(0)
    copy, *others = ["".join(chr(ord(first) + rng.randrange(40)) for _ in range(96)) for _ in range(20)]
    assert compared([copy, *others, copy])[0] == [(0, 20, 1.0)]
    assert 0.8 <= compared([copy, copy[:30] + first + copy[30:]])[0][0][2] < 1
    assert not compared([copy[:25], copy[:25]])[0]  # as short as what is too short in words


def test_a_text_that_many_patients_share_is_a_template():
    reports = [NORMAL] * TEMPLATE_PATIENTS + [told(1)]
    assert [compared(reports), compared(reports[1:])] == [([], 1), ([], 0)]
