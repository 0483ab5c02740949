"""What is measured of a reader: by hand, and against scikit-learn."""

import numpy as np
import pytest
from evidcore_plugin_emrl.reading_figures import Shown, reading_figures, shortfalls, shown
from sklearn.metrics import roc_auc_score

from evidcore.api import read, read_mask


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
    figures = reading_figures([item], [scores], [named], ("a", "b"))
    auc = pytest.approx(roc_auc_score([1, 1, 0, 0], scores[:, 0]))
    expected = {"auc": auc, "sensitivity": 0.5, "specificity": 0.5, "lesions": 2}
    assert figures["by_finding"]["a"] == expected
    assert figures["by_finding"]["b"]["auc"] == roc_auc_score([0, 0, 1], scores[[0, 2, 3], 1])
    assert figures["by_finding"]["b"]["specificity"] == 1.0  # slice 1 shows a pixel of it: not counted
    assert (figures["sensitivity"], figures["lesions"]) == (pytest.approx(2 / 3), 3)
    assert (figures["specificity"], figures["lesion_free_slices"]) == (0.0, 1)


def test_what_could_not_be_measured_is_missing_and_no_zero():
    item = Shown(areas=np.array([[5], [4]]), lesions=())
    figures = reading_figures([item], [np.ones((2, 1))], [np.ones((2, 1), bool)], ("a",))
    assert (figures["auc"], figures["sensitivity"], figures["specificity"]) == (None, None, None)
    assert shortfalls(figures)[0] == "auc was not measured, needs at least 0.95"
    low = {"auc": 0.5, "sensitivity": 0.8, "specificity": 0.0}
    said = "auc is 0.500, needs at least 0.95; specificity is 0.000, needs at least 0.97"
    assert "; ".join(shortfalls(low)) == said
