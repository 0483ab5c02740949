"""What is measured of a reader: by hand, against scikit-learn, and of readers that look at nothing."""

import numpy as np
import pytest
from disc_cases import HU
from evidcore_plugin_emrl.reading_figures import (
    QUESTION,
    Shown,
    measure_reader,
    reading_figures,
    shortfalls,
    shown,
)
from evidcore_plugin_reports.labelers import NegationRules
from sklearn.metrics import roc_auc_score

from evidcore.api import Reader, read, read_mask

FINDINGS = tuple(HU)


class Planted(Reader):
    deterministic = True

    def __call__(self, questions):
        assert {question.text for question in questions} == {QUESTION}
        return [self.said(question.crops[0]) for question in questions]


class Everything(Planted):
    def said(self, crop):
        return "There is a cyst. There is a stone."


class Nothing(Planted):
    def said(self, crop):
        return None


class ByHeight(Planted):
    """It has learnt which slices show a finding in most patients, and looks at no pixel."""

    def __init__(self, cases):
        self.share = {
            name: np.mean([shown(case, (name,)).areas[:, 0] > 0 for case in cases], axis=0) for name in HU
        }

    def said(self, crop):
        z = crop.box_zyx[0]
        return " ".join(f"There is a {name}." for name in HU if self.share[name][z] >= 0.15) or "Nothing."


class Eyes(Planted):
    """It sees what differs from tissue: darker is a cyst, brighter a stone."""

    def said(self, crop):
        z = crop.box_zyx[0]
        plane = read(crop.volume).array[z]
        seen = {"cyst": (plane < 20).sum() >= 5, "stone": (plane > 80).sum() >= 5}
        return " ".join(f"There is a {name}." for name in HU if seen[name]) or "Nothing is seen."


def measured(reader, cases):
    return measure_reader(reader, cases, FINDINGS, NegationRules(findings=FINDINGS), 3)


def test_eyes_reach_all_three_lines(discs):
    figures = measured(Eyes(), discs[:30])
    assert shortfalls(figures) == []
    assert figures["lesions"] == sum(len(case.masks) for case in discs[:30])


@pytest.mark.parametrize(
    ("made", "missed"),
    [
        (lambda cases: Everything(), "auc is 0.500, needs at least 0.95"),
        (lambda cases: Everything(), "specificity is 0.000, needs at least 0.97"),
        (lambda cases: Nothing(), "sensitivity is 0.000, needs at least 0.80"),
        (ByHeight, "specificity is"),
        (ByHeight, "auc is"),
    ],
)
def test_a_reader_that_looks_at_nothing_misses_a_line(discs, made, missed):
    result = shortfalls(measured(made(discs), discs[:30]))
    assert any(line.startswith(missed) for line in result), result


def test_a_lesion_is_looked_for_on_the_slice_that_shows_most_of_it(discs):
    case = next(case for case in discs if case.masks)
    for name in case.masks:
        areas = read_mask(case.masks[name], like=read(case.volumes[0])).sum(axis=(1, 2))
        item = shown(case, (name,))
        assert item.areas[:, 0].tolist() == areas.tolist()
        assert item.lesions == ((int(areas.argmax()), 0, int(areas.max())),)


def test_figures_by_hand():
    """The second lesion of the first finding is not named; a single pixel counts for nobody."""
    areas = np.array([[5, 0], [4, 1], [0, 0], [0, 9]])
    item = Shown(areas=areas, lesions=((0, 0, 5), (1, 0, 4), (1, 1, 1), (3, 1, 9)))
    scores = np.array([[0.9, 0.1], [0.2, 0.9], [0.3, 0.2], [0.1, 0.8]])
    named = np.array([[True, False], [False, True], [True, False], [False, True]])
    figures = reading_figures([item], [scores], [named], ("a", "b"), 3)
    assert figures["by_finding"]["a"] == {
        "auc": pytest.approx(roc_auc_score([1, 1, 0, 0], scores[:, 0])),
        "sensitivity": 0.5,
        "specificity": 0.5,
        "lesions": 2,
    }
    assert figures["by_finding"]["b"]["auc"] == roc_auc_score([0, 0, 1], scores[[0, 2, 3], 1])
    assert figures["by_finding"]["b"]["specificity"] == 1.0  # slice 1 shows a pixel of it: not counted
    assert (figures["sensitivity"], figures["lesions"]) == (pytest.approx(2 / 3), 3)
    assert (figures["specificity"], figures["lesion_free_slices"]) == (0.0, 1)


def test_what_could_not_be_measured_is_missing_and_no_zero():
    item = Shown(areas=np.array([[5], [4]]), lesions=())
    figures = reading_figures([item], [np.ones((2, 1))], [np.ones((2, 1), bool)], ("a",), 3)
    assert (figures["auc"], figures["sensitivity"], figures["specificity"]) == (None, None, None)
    assert shortfalls(figures)[0] == "auc was not measured, needs at least 0.95"
