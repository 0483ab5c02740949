from __future__ import annotations

import math
import random

import numpy as np
import pytest
from scipy import stats

from evidcore.evaluate.statistics import (
    Interval,
    cluster_t,
    hierarchical_interval,
    holm,
    mean_interval,
    paired_interval,
    ratio_interval,
)


def clustered(patients=60, questions=4, spread=0.3, seed=0):
    """Draw 0/1 answers whose chance differs from patient to patient."""
    dice = np.random.default_rng(seed)
    chance = np.clip(dice.normal(0.6, spread, patients), 0, 1)
    owners = np.repeat(np.arange(patients), questions)
    return (dice.random(len(owners)) < chance[owners]).astype(float), owners.tolist()


def looped(values, owners, draws, seed):
    """The cluster bootstrap as it is told: draw patients with replacement, pool their questions, average."""
    dice = random.Random(seed)
    by_patient = {}
    for value, owner in zip(values, owners, strict=True):
        by_patient.setdefault(owner, []).append(value)
    names = list(by_patient)
    means = []
    for _ in range(draws):
        pooled = [value for name in dice.choices(names, k=len(names)) for value in by_patient[name]]
        means.append(sum(pooled) / len(pooled))
    means.sort()
    return means[round(0.025 * draws)], means[round(0.975 * draws)]


def test_mean_interval_agrees_with_a_bootstrap_loop():
    values, owners = clustered()
    values, owners = values[:-3], owners[:-3]  # patients with unequal numbers of questions
    interval = mean_interval(values, owners)
    low, high = looped(values, owners, 4000, 1)
    assert interval.value == pytest.approx(sum(values) / len(values))
    assert interval.low == pytest.approx(low, abs=0.008)
    assert interval.high == pytest.approx(high, abs=0.008)
    assert (interval.values, interval.patients, interval.note) == (237, 60, "")


def test_mean_interval_is_wider_than_one_that_takes_questions_for_patients():
    values, owners = clustered(questions=8)
    assert (
        mean_interval(values, owners).half_width > 1.5 * mean_interval(values, range(len(values))).half_width
    )


def test_mean_interval_covers_the_truth_about_as_often_as_it_says():
    hits = 0
    for seed in range(200):
        dice = np.random.default_rng(seed)
        chance = dice.beta(2, 2, 40)
        owners = np.repeat(np.arange(40), 3)
        values = (dice.random(120) < chance[owners]).astype(float)
        hits += mean_interval(values, owners.tolist(), draws=500).covers(0.5)
    assert 175 <= hits <= 199  # 95 % of 200, 4.5 standard deviations down


def test_mean_interval_over_many_patients_is_the_normal_one():
    values = np.random.default_rng(0).normal(0, 1, 9000)
    interval = mean_interval(values, range(9000))
    assert interval.half_width == pytest.approx(1.96 * values.std() / math.sqrt(9000), rel=0.04)


def test_equal_seeds_give_equal_intervals_whatever_the_order():
    values, owners = np.random.default_rng(2).normal(size=240), clustered()[1]
    shuffled = np.random.default_rng(3).permutation(len(values))
    again = mean_interval(values[shuffled], [owners[place] for place in shuffled])
    once = mean_interval(values, owners)
    assert (again.low, again.high) == (pytest.approx(once.low), pytest.approx(once.high))
    assert mean_interval(values, owners, seed=1) != once == mean_interval(values, owners)


def test_too_few_patients_get_a_value_but_no_interval():
    interval = mean_interval([1.0, 0.0] * 19, [f"p{number // 2}" for number in range(38)])
    assert interval == Interval(
        value=0.5, low=None, high=None, values=38, patients=19, note="too few patients (19 of at least 20)"
    )
    assert interval.half_width is None
    assert not interval.covers(0.5)


@pytest.mark.parametrize(("same", "edge"), [(1.0, "low"), (0.0, "high")])
def test_values_that_are_all_alike_get_the_exact_binomial_bound(same, edge):
    interval = mean_interval([same] * 60, [number // 2 for number in range(60)])
    exact = stats.binomtest(int(30 * same), 30).proportion_ci(0.95, method="exact")
    assert getattr(interval, edge) == pytest.approx(getattr(exact, edge))
    assert interval.note == "all values are equal: exact binomial bound over patients"


def test_ratio_interval_agrees_with_a_bootstrap_loop():
    dice = np.random.default_rng(5)
    below = dice.integers(0, 5, 80).astype(float)
    above = np.floor(below * dice.random(80))
    interval = ratio_interval(above, below, range(80))
    loop = random.Random(2)
    drawn = []
    for _ in range(4000):
        picked = loop.choices(range(80), k=80)
        drawn.append(sum(above[i] for i in picked) / sum(below[i] for i in picked))
    drawn.sort()
    assert interval.value == pytest.approx(above.sum() / below.sum())
    assert interval.low == pytest.approx(drawn[100], abs=0.008)
    assert interval.high == pytest.approx(drawn[3900], abs=0.008)


def test_ratio_without_a_denominator_is_refused():
    with pytest.raises(ValueError, match=r"must sum to more than 0, got 0\.0"):
        ratio_interval([0.0], [0.0], ["a"])


def test_paired_interval_is_narrower_than_the_difference_of_two_means():
    values, owners = clustered()
    other = values.copy()
    other[::10] = 1 - other[::10]
    paired = paired_interval(values, other, owners)
    assert paired.value == pytest.approx(values.mean() - other.mean())
    assert paired.half_width < 0.6 * mean_interval(values, owners).half_width
    backwards = paired_interval(other, values, owners)
    assert backwards.low == pytest.approx(-paired.high, abs=0.005)


def test_paired_interval_of_equal_answers_is_exactly_nothing():
    values, owners = clustered()
    interval = paired_interval(values, values, owners)
    assert (interval.value, interval.low, interval.high) == (0.0, 0.0, 0.0)


def test_lengths_that_differ_are_named():
    with pytest.raises(ValueError, match="got 2 values and 1 patients"):
        mean_interval([1.0, 0.0], ["a"])
    with pytest.raises(ValueError, match="got 2 and 3"):
        paired_interval([1.0, 0.0], [1.0, 0.0, 1.0], ["a", "b"])
    with pytest.raises(ValueError, match="2 values, 1 seeds, 2 patients"):
        hierarchical_interval([1.0, 0.0], [1], ["a", "b"], patients_shared=True)
    with pytest.raises(ValueError, match="0 values"):
        mean_interval([], [])


def runs(effects, patients, questions, seed, own_patients):
    dice = np.random.default_rng(seed)
    values, seeds, owners = [], [], []
    difficulty = dice.normal(0, 0.1, patients)
    for run, effect in enumerate(effects):
        if own_patients:
            difficulty = dice.normal(0, 0.1, patients)
        for patient in range(patients):
            for _ in range(questions):
                values.append(effect + difficulty[patient] + dice.normal(0, 0.05))
                seeds.append(run)
                owners.append(f"{run if own_patients else ''}-{patient}")
    return values, seeds, owners


@pytest.mark.parametrize("own_patients", [True, False])
def test_hierarchical_interval_agrees_with_a_loop_over_seeds_and_patients(own_patients):
    values, seeds, owners = runs([0.5, 0.6, 0.8], 25, 2, 0, own_patients)
    interval = hierarchical_interval(values, seeds, owners, patients_shared=not own_patients)
    table = {}
    for value, seed, owner in zip(values, seeds, owners, strict=True):
        table.setdefault(seed, {}).setdefault(owner, []).append(value)
    loop = random.Random(4)
    drawn = []
    for _ in range(3000):
        common = loop.choices(sorted(table[0]), k=25)
        total = 0.0
        for run in loop.choices(range(3), k=3):
            picked = common if not own_patients else loop.choices(sorted(table[run]), k=25)
            pooled = [value for owner in picked for value in table[run][owner]]
            total += sum(pooled) / len(pooled) / 3
        drawn.append(total)
    drawn.sort()
    by_seed = [np.mean([v for v, seed in zip(values, seeds, strict=True) if seed == run]) for run in range(3)]
    assert interval.value == pytest.approx(sum(by_seed) / 3)
    assert interval.low == pytest.approx(drawn[75], abs=0.012)
    assert interval.high == pytest.approx(drawn[2925], abs=0.012)
    assert (interval.patients, interval.note) == (75 if own_patients else 25, "3 seeds")


def test_hierarchical_interval_widens_with_the_spread_between_seeds():
    calm, wild = (
        hierarchical_interval(*runs(effects, 25, 2, 0, False), patients_shared=True)
        for effects in ([0.6, 0.6, 0.6], [0.4, 0.6, 0.8])
    )
    assert wild.half_width > 2 * calm.half_width


def test_patients_said_to_be_shared_must_be():
    values, seeds, owners = runs([0.5, 0.6], 20, 1, 0, True)
    with pytest.raises(ValueError, match="every seed must be tested on the same patients"):
        hierarchical_interval(values, seeds, owners, patients_shared=True)


def test_hierarchical_interval_says_when_a_seed_has_too_few_patients():
    values, seeds, owners = runs([0.5, 0.6], 12, 2, 0, True)
    assert hierarchical_interval(values, seeds, owners, patients_shared=False).note == (
        "too few patients (12 of at least 20)"
    )


def test_cluster_t_with_one_question_a_patient_is_the_ordinary_t_test():
    values = np.random.default_rng(0).normal(0.2, 1, 30)
    test, ordinary = cluster_t(values, range(30)), stats.ttest_1samp(values, 0)
    assert test.p_value == pytest.approx(ordinary.pvalue)
    low, high = ordinary.confidence_interval(0.95)
    assert (test.low, test.high) == (pytest.approx(low), pytest.approx(high))


def test_cluster_t_is_the_sandwich_formula_by_hand():
    # patients a: 1, 0; b: 1; c: 0, 0, 1. Mean 1/2; sums of residuals: 0, 1/2, -1/2
    test = cluster_t([1, 0, 1, 0, 0, 1], ["a", "a", "b", "c", "c", "c"])
    error = math.sqrt(3 / 2 * (0.25 + 0.25)) / 6
    assert (test.value, test.standard_error) == (0.5, pytest.approx(error))
    assert test.degrees_of_freedom == 2
    assert test.p_value == pytest.approx(2 * stats.t.sf(0.5 / error, 2))


@pytest.mark.parametrize(("value", "p_value"), [(0.0, 1.0), (1.0, 0.0)])
def test_cluster_t_without_spread(value, p_value):
    assert cluster_t([value] * 5, range(5)).p_value == p_value


def test_cluster_t_needs_two_patients():
    with pytest.raises(ValueError, match="at least 2 of them, got 1"):
        cluster_t([1, 0], ["a", "a"])


def test_holm_by_hand():
    # sorted 0.01, 0.02, 0.03, 0.6 times 4, 3, 2, 1, never falling
    assert holm([0.03, 0.01, 0.6, 0.02]) == pytest.approx([0.06, 0.04, 0.6, 0.06])
    assert holm([0.4, 0.9]) == pytest.approx([0.8, 0.9])
    assert holm([]) == []


def test_holm_rejects_what_the_step_down_rule_rejects():
    dice = random.Random(0)
    for _ in range(200):
        p_values = [dice.random() ** 3 for _ in range(6)]
        order, rejected = sorted(range(6), key=p_values.__getitem__), set()
        for rank, place in enumerate(order):
            if p_values[place] > 0.05 / (6 - rank):
                break
            rejected.add(place)
        assert {place for place, adjusted in enumerate(holm(p_values)) if adjusted <= 0.05} == rejected
