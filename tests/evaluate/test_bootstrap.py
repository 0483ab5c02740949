import math
import random

import numpy as np
import pytest
from scipy import stats

from evidcore.api import mean_interval, paired_interval
from evidcore.contracts import Totals
from evidcore.contracts.evaluating import Interval
from evidcore.evaluate.bootstrap import TIED, detectable, figure_interval, holm, ratio_interval

RNG = np.random.default_rng(7)
PATIENTS = [f"p{index // 2}" for index in range(80)]


# 0/1 answers, four of each of 60 patients, whose chance differs from patient to patient
ASKED = np.random.default_rng(0)
CHANCE = np.clip(ASKED.normal(0.6, 0.3, 60), 0, 1)
OWNERS = np.repeat(np.arange(60), 4).tolist()
VALUES = (ASKED.random(240) < CHANCE[OWNERS]).astype(float)


def looped(patients, figure_of, draws=4000, within=0.008):
    """The cluster bootstrap as it is told: draw patients with replacement, and take the figure of those."""
    rng = random.Random(1)
    drawn = [figure_of(rng.choices(patients, k=len(patients))) for _ in range(draws)]
    return pytest.approx(list(np.quantile(drawn, [0.025, 0.975])), abs=within)


def test_mean_interval_agrees_with_a_bootstrap_loop():
    values, owners = VALUES[:-3], OWNERS[:-3]  # patients with unequal numbers of questions
    interval = mean_interval(values, owners)
    by_patient = [
        [value for value, owner in zip(values, owners, strict=True) if owner == name] for name in range(60)
    ]
    assert interval.value == pytest.approx(sum(values) / len(values))
    assert [interval.low, interval.high] == looped(
        by_patient, lambda drawn: np.concatenate(drawn).mean(), within=0.015
    )
    assert (interval.values, interval.patients, interval.note) == (237, 60, "")


@pytest.mark.parametrize("likeness", [0.0, 0.3])  # of a patient's questions: the intraclass correlation
@pytest.mark.parametrize("asked", [1, 3])
@pytest.mark.parametrize("patients", [20, 40])
def test_an_interval_of_a_rate_holds_the_truth_in_95_of_100_samples(patients, asked, likeness):
    rng = np.random.default_rng(7)
    owners = np.repeat(np.arange(patients), asked)
    for rate in (0.02, 0.1, 0.25, 0.5, 0.9, 0.98):
        held = 0
        for _ in range(600):
            spread = (1 - likeness) / max(likeness, 1e-6)
            chance = rng.beta(rate * spread, (1 - rate) * spread, patients)
            found = mean_interval((rng.random(len(owners)) < chance[owners]).astype(float), owners.tolist())
            held += found.low <= rate <= found.high
        assert 0.92 <= held / 600 <= 0.99, rate


def test_equal_data_give_equal_intervals_whatever_the_order():
    values = np.random.default_rng(2).normal(size=240)
    shuffled = np.random.default_rng(3).permutation(len(values))
    again = mean_interval(values[shuffled], [OWNERS[index] for index in shuffled])
    once = mean_interval(values, OWNERS)
    assert (again.low, again.high) == (pytest.approx(once.low), pytest.approx(once.high))
    assert mean_interval(values, OWNERS) == once


def test_too_few_patients_get_a_value_but_no_interval():
    interval = mean_interval([1.0, 0.0] * 19, [f"p{number // 2}" for number in range(38)])
    assert interval == Interval(
        value=0.5, low=None, high=None, values=38, patients=19, note="too few patients (19 of at least 20)"
    )


@pytest.mark.parametrize(("same", "edge"), [(1.0, "low"), (0.0, "high")])
def test_values_that_are_all_alike_get_the_exact_binomial_bound(same, edge):
    interval = mean_interval([same] * 60, [number // 2 for number in range(60)])
    exact = stats.binomtest(int(30 * same), 30).proportion_ci(0.95, method="exact")
    assert getattr(interval, edge) == pytest.approx(getattr(exact, edge))
    assert interval.note == "all values are equal: exact binomial bound over patients"


def test_ratio_interval_agrees_with_a_bootstrap_loop():
    rng = np.random.default_rng(5)
    below = rng.integers(0, 5, 80).astype(float)
    above = np.floor(below * rng.random(80))
    interval = ratio_interval(above, below, range(80))
    assert interval.value == pytest.approx(above.sum() / below.sum())
    expected = looped(range(80), lambda drawn: above[drawn].sum() / below[drawn].sum(), within=0.015)
    assert [interval.low, interval.high] == expected
    figures = [Totals("ratio", pair) for pair in zip(above, below, strict=True)]
    told = figure_interval(figures, range(80))
    assert (told.value, told.low, told.high) == (interval.value, interval.low, interval.high)


def test_ratio_without_a_denominator_is_refused():
    with pytest.raises(ValueError, match=r"must sum to more than 0, got 0\.0"):
        ratio_interval([0.0], [0.0], ["a"])


def test_paired_interval_is_narrower_than_the_difference_of_two_means():
    other = VALUES.copy()
    other[::10] = 1 - other[::10]
    paired, whole = paired_interval(VALUES, other, OWNERS), mean_interval(VALUES, OWNERS)
    assert paired.value == pytest.approx(VALUES.mean() - other.mean())
    assert paired.high - paired.low < 0.6 * (whole.high - whole.low)
    backwards = paired_interval(other, VALUES, OWNERS)
    assert backwards.low == pytest.approx(-paired.high, abs=0.005)


def test_differences_that_cancel_in_each_patient_are_a_tie_and_no_share():
    found = paired_interval([1.0, 0.0] * 30, [0.0, 1.0] * 30, [index // 2 for index in range(60)])
    assert (found.value, found.low, found.note) == (0.0, None, TIED)


def test_lengths_that_differ_are_named():
    with pytest.raises(ValueError, match="got 2 values and 1 patients"):
        mean_interval([1.0, 0.0], ["a"])
    with pytest.raises(ValueError, match="got 2 and 3"):
        paired_interval([1.0, 0.0], [1.0, 0.0, 1.0], ["a", "b"])
    with pytest.raises(ValueError, match="0 values"):
        mean_interval([], [])


def ratios(shift=0.0):
    below = RNG.integers(1, 6, 80)
    above = RNG.binomial(below, 0.4 + shift)
    return [Totals("ratio", (float(a), float(b))) for a, b in zip(above, below, strict=True)]


def test_texts_that_add_nothing_to_a_ratio_bound_nothing():
    figures = [Totals("ratio", (1.0, 1.0))] * 40 + [Totals("ratio", (0.0, 0.0))] * 40
    found = figure_interval(figures, PATIENTS)
    assert (found.value, found.values, found.patients) == (1.0, 40, 20)
    assert found.low == pytest.approx(0.025 ** (1 / 20))  # 20 patients in a row, not 40


def test_few_patients_and_equal_numbers_have_no_interval():
    few = figure_interval([Totals("ratio", (1, 2))] * 4, ["a", "b", "c", "d"])
    assert (few.value, few.low, few.is_tied) == (pytest.approx(0.5), None, False)
    assert few.note == "too few patients (4 of at least 20)"
    for number in (0.0, 1.0, 3.0):  # of a scale that is not known, so without an exact bound
        equal = figure_interval([number] * 80, PATIENTS)
        assert (equal.value, equal.low, equal.note) == (number, None, TIED)
    assert figure_interval([Totals("ratio", (0, 0))] * 80, PATIENTS) is None


def test_the_interval_of_a_difference_agrees_with_a_loop_over_patients():
    first, second = ratios(0.3), ratios()
    figures = [
        Totals("difference", (*one.numbers, *other.numbers)) for one, other in zip(first, second, strict=True)
    ]
    found = figure_interval(figures, PATIENTS)
    by_patient = np.array([one.numbers for one in figures]).reshape(40, 2, 4).sum(axis=1)

    def difference(drawn):
        sums = by_patient[drawn].sum(axis=0)
        return sums[0] / sums[1] - sums[2] / sums[3]

    assert [found.low, found.high] == looped(range(40), difference)
    assert found.low < found.value < found.high


def test_the_detectable_difference_of_an_interval_is_that_of_its_standard_error():
    found = paired_interval(VALUES, np.zeros(240), OWNERS)
    means = VALUES.reshape(60, 4).mean(axis=1)
    assert found.standard_error == pytest.approx(np.std(means) / math.sqrt(60), rel=0.05)
    assert detectable(found) == detectable(found.standard_error)
    assert detectable(0.01) == pytest.approx(0.02801585)
    assert detectable(None) is None
    assert detectable(mean_interval([1.0] * 30, list(range(30)))) is None


def test_holm_by_hand():
    # sorted 0.01, 0.02, 0.025, 0.6 times 4, 3, 2, 1: 0.04, 0.06, 0.05, 0.6, and never falling
    assert holm([0.025, 0.01, 0.6, 0.02]) == pytest.approx([0.06, 0.04, 0.6, 0.06])
    assert holm([0.4, 0.9]) == pytest.approx([0.8, 0.9])
    assert holm([]) == []
