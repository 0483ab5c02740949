from __future__ import annotations

import random

import numpy as np
import pytest
from scipy import stats

from evidcore.contracts import Sums
from evidcore.evaluate import items
from evidcore.evaluate.compare import change_over_seeds
from evidcore.evaluate.contrast import Arms
from evidcore.evaluate.pooling import change_interval_over_seeds


def answered(patient, above, below):
    return items.Item(patient, Sums("ratio", (above, below)))


def drawn(chance, *, seed, patients=60, questions=3, owner="p"):
    """Draw right and wrong answers of one cell; patients differ in how hard they are."""
    dice = np.random.default_rng(seed)
    hard = np.random.default_rng(99).normal(0, 0.2, patients)
    return {
        f"q{patient}-{number}": answered(
            f"{owner}{patient}", float(dice.random() < chance + hard[patient]), 1.0
        )
        for patient in range(patients)
        for number in range(questions)
    }


def cells(chances, **shape):
    """Return arm -> seed -> items for arm -> chance of each seed."""
    return {
        arm: {seed: drawn(chance, seed=1000 * place + seed, **shape) for seed, chance in enumerate(some)}
        for place, (arm, some) in enumerate(chances.items())
    }


def lines(items):
    """Return items as lines of answers that the older comparison reads."""
    return [
        {"prompt_id": name, "case_id": "c", "patient": item.patient, "answer": "A",
         "choice": "A" if item.sums.numbers[0] else "B"}
        for name, item in items.items()
    ]  # fmt: skip


ONE_BY_TWO = {"a": [0.4, 0.5, 0.45], "b": [0.55, 0.5, 0.6]}


@pytest.mark.parametrize("patients_shared", [True, False])
def test_a_difference_agrees_with_the_comparison_of_two_arms(patients_shared):
    found = cells(ONE_BY_TWO)
    ours = Arms(found, patients_shared=patients_shared).contrast({"b": 1.0, "a": -1.0})
    pairs = [(lines(found["a"][seed]), lines(found["b"][seed])) for seed in range(3)]
    theirs = change_over_seeds(pairs, patients_shared=patients_shared)
    assert ours.value == pytest.approx(theirs.value)
    assert (ours.items, ours.patients) == (theirs.values, theirs.patients)
    assert ours.low == pytest.approx(theirs.low, abs=0.01)
    assert ours.high == pytest.approx(theirs.high, abs=0.01)


def test_one_seed_agrees_with_scipys_bootstrap_over_patients():
    found = cells({"a": [0.4], "b": [0.6]}, questions=1)
    ours = Arms(found, patients_shared=True).contrast({"b": 1.0, "a": -1.0})
    differences = [
        found["b"][0][name].sums.numbers[0] - item.sums.numbers[0] for name, item in found["a"][0].items()
    ]
    theirs = stats.bootstrap((differences,), np.mean, n_resamples=20_000, method="percentile", rng=3)
    assert ours.value == pytest.approx(np.mean(differences))
    assert ours.standard_error == pytest.approx(theirs.standard_error, rel=0.04)
    assert ours.low == pytest.approx(theirs.confidence_interval.low, abs=0.02)
    assert ours.high == pytest.approx(theirs.confidence_interval.high, abs=0.02)
    assert "1 seed" in ours.note


def ratio(some):
    sides = list(zip(*(item.sums.numbers for item in some), strict=True))
    return sum(sides[0]) / sum(sides[1])


def looped(found, weights, draws):
    """The hierarchical bootstrap as it is told: draw seeds, then patients of each, and pool their items."""
    dice, told = random.Random(5), []
    seeds = sorted(found["a"])
    for _ in range(draws):
        total = 0.0
        for seed in dice.choices(seeds, k=len(seeds)):
            patients = sorted({item.patient for item in found["a"][seed].values()})
            picked = dice.choices(patients, k=len(patients))
            for arm, weight in weights.items():
                own = {name: [] for name in patients}
                for item in found[arm][seed].values():
                    own[item.patient].append(item)
                pooled = [item for patient in picked for item in own[patient]]
                total += weight * ratio(pooled)
        told.append(total / len(seeds))
    return np.quantile(told, [0.025, 0.975])


def test_a_ratio_agrees_with_a_bootstrap_loop():
    dice = np.random.default_rng(8)

    def reports(gain):
        hits, others = dice.poisson(2 + gain, 30), dice.poisson(4, 30)
        return {
            f"r{place}": answered(f"p{place % 25}", 2.0 * hit, 2.0 * hit + other)
            for place, (hit, other) in enumerate(zip(hits, others, strict=True))
        }

    found = {"a": {0: reports(0), 1: reports(0)}, "b": {0: reports(1), 1: reports(2)}}
    weights = {"b": 1.0, "a": -1.0}
    ours = Arms(found, patients_shared=False).contrast(weights)
    by_hand = [ratio(found["b"][seed].values()) - ratio(found["a"][seed].values()) for seed in (0, 1)]
    assert list(ours.by_seed.values()) == pytest.approx(by_hand)
    assert ours.value == pytest.approx(sum(by_hand) / 2)
    low, high = looped(found, weights, 1500)
    assert ours.low == pytest.approx(low, abs=0.02)
    assert ours.high == pytest.approx(high, abs=0.02)


@pytest.mark.parametrize("patients_shared", [True, False])
@pytest.mark.parametrize("pooling", ["ratio", "mean_ratio", "difference"])
def test_every_pooling_agrees_with_the_comparison_of_two_arms(pooling, patients_shared):
    dice = np.random.default_rng(3)

    def cell(gain):
        above, below = dice.poisson(2 + gain, (40, 2)), dice.poisson(5, (40, 2)) + 3
        numbers = np.stack([above[:, 0], below[:, 0], above[:, 1], below[:, 1]], axis=1).astype(float)
        wide = 2 if pooling == "ratio" else 4
        return {
            f"r{place}": items.Item(f"p{place % 30}", Sums(pooling, tuple(row[:wide])))
            for place, row in enumerate(numbers)
        }

    found = {"a": {seed: cell(0) for seed in range(3)}, "b": {seed: cell(1) for seed in range(3)}}
    ours = Arms(found, patients_shared=patients_shared).contrast({"b": 1.0, "a": -1.0})
    sides = [
        tuple([item.sums for item in found[arm][seed].values()] for arm in ("a", "b")) for seed in range(3)
    ]
    owners = [
        [item.patient if patients_shared else f"{seed}/{item.patient}" for item in found["a"][seed].values()]
        for seed in range(3)
    ]
    theirs = change_interval_over_seeds(sides, owners, patients_shared=patients_shared)
    assert (ours.value, ours.items, ours.patients) == (
        pytest.approx(theirs.value),
        theirs.values,
        theirs.patients,
    )
    width = theirs.high - theirs.low
    assert ours.low == pytest.approx(theirs.low, abs=0.06 * width)
    assert ours.high == pytest.approx(theirs.high, abs=0.06 * width)


def test_an_answer_whose_figure_is_missing_in_one_arm_is_left_out_and_said():
    first, second = flat(10), flat(15)
    second["q0"] = items.Item("p0", None)
    found = Arms({"a": {0: first}, "b": {0: second}}, patients_shared=True)
    contrast = found.contrast({"b": 1, "a": -1})
    assert contrast.value == pytest.approx(5 / 24)
    assert (contrast.items, contrast.patients) == (24, 24)
    assert contrast.note.startswith("1 of 25 answers lack it in an arm; 1 seed")
    assert found.contrast({"a": 1}).value == pytest.approx(10 / 25)


def flat(value, patients=25):
    """A cell in which `value` of the patients' one question each are right."""
    return {f"q{place}": answered(f"p{place}", float(place < value), 1.0) for place in range(patients)}


def test_main_effects_and_interaction_are_their_hand_values():
    found = {
        "off+off": {1: flat(5)}, "off+on": {1: flat(10)}, "on+off": {1: flat(8)}, "on+on": {1: flat(20)},
    }  # fmt: skip
    arms = Arms(found, patients_shared=True)
    first = {"on+off": 0.5, "on+on": 0.5, "off+off": -0.5, "off+on": -0.5}
    both = {"on+on": 1.0, "off+off": 1.0, "on+off": -1.0, "off+on": -1.0}
    assert arms.contrast(first).value == pytest.approx(((20 - 10) + (8 - 5)) / 2 / 25)
    assert arms.contrast(both).value == pytest.approx(((20 - 10) - (8 - 5)) / 25)


def test_a_p_value_falls_below_5_percent_where_the_interval_leaves_0_out():
    clear = Arms(cells({"a": [0.3] * 3, "b": [0.7] * 3}), patients_shared=False).contrast({"b": 1, "a": -1})
    assert clear.low > 0
    assert clear.p_value == pytest.approx(2 / 4001)  # no draw reached 0
    same = Arms(cells({"a": [0.5] * 3, "b": [0.5] * 3}), patients_shared=False).contrast({"b": 1, "a": -1})
    assert same.low < 0 < same.high
    assert same.p_value > 0.05


def test_p_values_of_equal_arms_are_spread_evenly():
    """Under no difference, a tenth of the p values lies below 0.1; here over patients of one seed."""
    found = []
    for seed in range(200):
        pair = {"a": {0: drawn(0.5, seed=seed)}, "b": {0: drawn(0.5, seed=10_000 + seed)}}
        arms = Arms(pair, patients_shared=True, draws=400, seed=seed)
        found.append(arms.contrast({"b": 1, "a": -1}).p_value)
    below = sum(p < 0.1 for p in found)
    assert stats.binom.cdf(below, 200, 0.1) > 1e-3
    assert stats.binom.sf(below - 1, 200, 0.1) > 1e-3
    assert 0.4 < np.mean(found) < 0.6


@pytest.mark.parametrize(("spread", "fewest", "most"), [(0.0, 96, 100), (1.0, 88, 99), (3.0, 62, 85)])
def test_intervals_over_three_seeds_are_too_narrow_where_trainings_differ_much(spread, fewest, most):
    """`spread`: between trainings, in standard errors of one seed's patients. docs/ablations.md quotes it."""
    dice = np.random.default_rng(0)
    sigma, patients, held = 0.5, 60, 0
    for number in range(100):
        found = {"a": {}, "b": {}}
        for seed in range(3):
            moved = dice.normal(dice.normal(0, spread * sigma / np.sqrt(patients)), sigma, patients)
            found["a"][seed] = {f"q{at}": answered(f"{seed}p{at}", 0.0, 1.0) for at in range(patients)}
            found["b"][seed] = {
                f"q{at}": answered(f"{seed}p{at}", value, 1.0) for at, value in enumerate(moved)
            }
        contrast = Arms(found, patients_shared=False, draws=400, seed=number).contrast({"b": 1, "a": -1})
        held += contrast.low <= 0 <= contrast.high
    assert fewest <= held <= most


def test_the_detectable_difference_is_found_in_4_of_5_experiments():
    dice = np.random.default_rng(0)
    sigma, patients = 0.5, 100

    def experiment(effect):
        base = dice.random(patients)
        moved = base + effect + dice.normal(0, sigma, patients)
        pair = {
            "a": {0: {f"q{at}": answered(f"p{at}", value, 1.0) for at, value in enumerate(base)}},
            "b": {0: {f"q{at}": answered(f"p{at}", value, 1.0) for at, value in enumerate(moved)}},
        }
        return Arms(pair, patients_shared=True, draws=1000).contrast({"b": 1, "a": -1})

    reach = experiment(0.0).detectable()
    assert reach == pytest.approx((1.959964 + 0.841621) * sigma / np.sqrt(patients), rel=0.15)  # by hand
    found = sum(experiment(2.801585 * sigma / 10).p_value < 0.05 for _ in range(200))
    assert stats.binom.cdf(found, 200, 0.8) > 1e-3
    assert stats.binom.sf(found - 1, 200, 0.8) > 1e-3


def test_more_tests_make_the_detectable_difference_larger():
    contrast = Arms(cells(ONE_BY_TWO), patients_shared=False).contrast({"b": 1, "a": -1})
    ratio = contrast.detectable(tests=5) / contrast.detectable()
    assert ratio == pytest.approx((stats.norm.ppf(0.995) + 0.841621) / (1.959964 + 0.841621), rel=1e-5)


def test_a_seed_that_an_arm_lacks_is_left_out():
    found = cells(ONE_BY_TWO)
    del found["b"][1]
    contrast = Arms(found, patients_shared=False).contrast({"b": 1, "a": -1})
    assert sorted(contrast.by_seed) == [0, 2]
    assert sorted(Arms(found, patients_shared=False).contrast({"a": 1}).by_seed) == [0, 1, 2]
    nothing = Arms({"a": {0: flat(3)}, "b": {1: flat(3)}}, patients_shared=True).contrast({"b": 1, "a": -1})
    assert (nothing.value, nothing.note) == (None, "no seed is finished in all of its arms")


def test_what_cannot_be_told_is_not_told():
    few = Arms({"a": {0: flat(3, 10)}}, patients_shared=True).contrast({"a": 1})
    assert (few.value, few.low, few.note) == (0.3, None, "too few patients (10 of at least 20)")
    assert few.detectable() is None
    same = Arms({"a": {0: flat(3)}, "b": {0: flat(3)}}, patients_shared=True).contrast({"b": 1, "a": -1})
    assert (same.value, same.low, same.p_value) == (0.0, None, None)
    assert same.note == "no interval: every draw gives the same"
    empty = Arms({"a": {0: {"q": answered("p", 0.0, 0.0)}}}, patients_shared=True).contrast({"a": 1})
    assert (empty.value, empty.note) == (None, "an arm has nothing to divide by")


def test_other_questions_are_refused():
    pair = {"a": {4: flat(3, 22)}, "b": {4: flat(3, 25)}}
    with pytest.raises(ValueError, match="under seed 4, 0 are only in 'a', 3 only in 'b'"):
        Arms(pair, patients_shared=True).contrast({"b": 1, "a": -1})
    moved = {"a": {0: flat(3), 1: {"q": answered("else", 1.0, 1.0), **flat(3)}}}
    with pytest.raises(ValueError, match="every seed must be tested on the same patients"):
        Arms(moved, patients_shared=True).contrast({"a": 1})
