from __future__ import annotations

import json

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU
from sklearn.metrics import f1_score

from evidcore.contracts import Sums
from evidcore.evaluate.pooling import (
    change_interval,
    change_interval_over_seeds,
    figure_interval,
    from_json,
    pooled,
    to_json,
)
from evidcore.evaluate.statistics import hierarchical_interval, paired_interval, ratio_interval

DICE = np.random.default_rng(7)
PATIENTS = [f"p{place // 2}" for place in range(80)]


def ratios(shift=0.0):
    below = DICE.integers(1, 6, 80)
    above = DICE.binomial(below, 0.4 + shift)
    return [Sums("ratio", (float(a), float(b))) for a, b in zip(above, below, strict=True)]


def test_numbers_are_averaged_and_sums_are_pooled():
    assert pooled([0.5, 1.0, 0.0]) == 0.5
    assert pooled([Sums("ratio", (1, 4)), Sums("ratio", (1, 1))]) == pytest.approx(2 / 5)
    differences = [Sums("difference", (1, 1, 0, 1)), Sums("difference", (0, 1, 0, 3))]
    assert pooled(differences) == pytest.approx(1 / 2 - 0 / 4)
    assert pooled([Sums("mean_ratio", (1, 2, 0, 0)), Sums("mean_ratio", (1, 2, 0, 0))]) == 0.5
    assert pooled([Sums("ratio", (0, 0))]) is None
    assert pooled([Sums("difference", (1, 1, 0, 0))]) is None
    assert pooled([Sums("mean_ratio", (0, 0))]) is None


def test_mean_ratio_is_macro_f1():
    truth, said = DICE.random((30, 4)) < 0.4, DICE.random((30, 4)) < 0.5
    figures = []
    for true, named in zip(truth, said, strict=True):
        hits = [(2.0 * (t and n), float(t) + float(n)) for t, n in zip(true, named, strict=True)]
        figures.append(Sums("mean_ratio", tuple(number for pair in hits for number in pair)))
    assert pooled(figures) == pytest.approx(f1_score(truth, said, average="macro"))


def test_bleu_is_pooled_as_sacrebleu_pools_it():
    ours = ["there is a nodule in the left lung .", "no effusion , heart normal ."]
    theirs = ["a nodule lies in the left lung .", "no effusion ; the heart is normal ."]
    alone = BLEU(effective_order=True, tokenize="none")
    scores = [alone.sentence_score(one, [other]) for one, other in zip(ours, theirs, strict=True)]
    figures = [Sums("bleu", (*s.counts, *s.totals, s.sys_len, s.ref_len)) for s in scores]
    expected = BLEU(smooth_method="none", tokenize="none").corpus_score(ours, [theirs]).score / 100
    assert pooled(figures) == pytest.approx(expected)
    assert 0.1 < expected < 0.9


def test_figures_go_to_json_and_back():
    for figure in (0.25, Sums("bleu", (1.0, 2.0, 3.0, 4.0))):
        assert from_json(json.loads(json.dumps(to_json(figure)))) == figure
    assert to_json(Sums("ratio", (1.0, 2.0))) == {"ratio": [1.0, 2.0]}
    for strange in ({"median": [1]}, {"ratio": [1], "bleu": [2]}, "0.5", None, True):
        with pytest.raises(ValueError, match="no figure of a text"):
            from_json(strange)


def test_figures_of_different_kinds_do_not_mix():
    with pytest.raises(ValueError, match="must be of one kind"):
        pooled([Sums("ratio", (1, 2)), Sums("bleu", (1, 2, 3, 4))])
    with pytest.raises(ValueError, match="must be of one kind"):
        pooled([Sums("ratio", (1, 2)), 0.5])


def test_the_interval_of_a_ratio_is_that_of_the_ratio_bootstrap():
    figures = ratios()
    expected = ratio_interval(
        [one.numbers[0] for one in figures], [one.numbers[1] for one in figures], PATIENTS
    )
    assert figure_interval(figures, PATIENTS) == expected
    assert expected.patients == 40


def test_texts_that_add_nothing_to_a_ratio_bound_nothing():
    figures = [Sums("ratio", (1.0, 1.0))] * 40 + [Sums("ratio", (0.0, 0.0))] * 40
    found = figure_interval(figures, PATIENTS)
    assert (found.value, found.values, found.patients) == (1.0, 40, 20)
    assert found.low == pytest.approx(0.025 ** (1 / 20))  # 20 patients in a row, not 40


@pytest.mark.parametrize(
    ("kind", "said"),
    [("ratio", (1.0, 2.0)), ("difference", (1.0, 2.0, 1.0, 4.0)), ("mean_ratio", (1.0, 2.0, 0.0, 0.0))],
)
def test_no_interval_rests_on_patients_who_add_nothing(kind, said):
    silent = Sums(kind, (0.0,) * len(said))
    figures = [Sums(kind, said)] * 38 + [silent] * 42  # 19 patients of 40 have a say
    noted = "too few patients (19 of at least 20)"
    assert figure_interval(figures, PATIENTS).note == noted
    assert change_interval(figures, figures, PATIENTS).note == noted
    one_side = [silent] * 2 + figures[2:]
    assert change_interval(one_side, figures, PATIENTS).note == noted
    for shared in (True, False):
        seeds = change_interval_over_seeds([(figures, figures)] * 2, [PATIENTS] * 2, patients_shared=shared)
        assert (seeds.note, seeds.values) == (noted, 76)


def test_seeds_that_share_patients_may_differ_in_who_has_a_say():
    silent = Sums("ratio", (0.0, 0.0))
    early = [*ratios()[:60], *[silent] * 20]
    late = [*[silent] * 20, *ratios()[:60]]
    found = change_interval_over_seeds([(early, early), (late, late)], [PATIENTS] * 2, patients_shared=True)
    assert (found.value, found.low, found.high) == (0.0, 0.0, 0.0)
    assert found.patients == 40


def test_the_interval_of_a_difference_agrees_with_a_loop_over_patients():
    first, second = ratios(0.3), ratios()
    figures = [
        Sums("difference", (*one.numbers, *other.numbers)) for one, other in zip(first, second, strict=True)
    ]
    found = figure_interval(figures, PATIENTS)
    dice, drawn = np.random.default_rng(1), []
    names = sorted(set(PATIENTS))
    for _ in range(3000):
        picked = [place for name in dice.choice(names, len(names)) for place in places(name)]
        sums = np.sum([figures[place].numbers for place in picked], axis=0)
        drawn.append(sums[0] / sums[1] - sums[2] / sums[3])
    assert [found.low, found.high] == pytest.approx(list(np.quantile(drawn, [0.025, 0.975])), abs=0.015)
    assert found.low < found.value < found.high


def places(name):
    number = int(name[1:])
    return (2 * number, 2 * number + 1)


def test_a_change_of_numbers_is_the_paired_one():
    before, after = DICE.random(80), DICE.random(80)
    assert change_interval(before, after, PATIENTS) == paired_interval(after, before, PATIENTS)


def test_a_change_of_sums_draws_the_same_patients_for_both_sides():
    before = ratios()
    same = change_interval(before, before, PATIENTS)
    assert (same.value, same.low) == (0.0, None)
    assert same.note == "no interval: every resample gives the same"
    better = [Sums("ratio", (min(a + 1, b), b)) for a, b in (one.numbers for one in before)]
    found = change_interval(before, better, PATIENTS)
    assert found.value == pytest.approx(pooled(better) - pooled(before))
    assert found.low > 0
    alone = figure_interval(better, PATIENTS)
    assert found.high - found.low < alone.high - alone.low  # the patients' spread cancels
    with pytest.raises(ValueError, match="two figures per text, got 80 and 79"):
        change_interval(before, better[:-1], PATIENTS)


@pytest.mark.parametrize("patients_shared", [True, False])
def test_a_change_over_seeds_is_the_mean_over_seeds(patients_shared):
    pairs = [(ratios(), ratios(gain)) for gain in (0.1, 0.2, 0.3)]
    found = change_interval_over_seeds(pairs, [PATIENTS] * 3, patients_shared=patients_shared)
    expected = np.mean([pooled(after) - pooled(before) for before, after in pairs])
    assert found.value == pytest.approx(expected)
    assert found.low < found.value < found.high
    assert (found.note, found.values) == ("3 seeds", 240)


def test_a_change_of_ratios_over_seeds_agrees_with_the_hierarchical_bootstrap_where_both_hold():
    # with denominators of 1, a ratio is a mean
    numbers = [(DICE.random(80), DICE.random(80) + gain) for gain in (0.0, 0.1, 0.2)]
    pairs = [tuple([Sums("ratio", (float(v), 1.0)) for v in side] for side in pair) for pair in numbers]
    found = change_interval_over_seeds(pairs, [PATIENTS] * 3, patients_shared=True)
    expected = hierarchical_interval(
        np.concatenate([after - before for before, after in numbers]),
        [seed for seed in range(3) for _ in range(80)], PATIENTS * 3, patients_shared=True,
    )  # fmt: skip
    assert found.value == pytest.approx(expected.value)
    assert [found.low, found.high] == pytest.approx([expected.low, expected.high], abs=0.02)
    assert change_interval_over_seeds(numbers, [PATIENTS] * 3, patients_shared=True) == expected


def test_patients_who_should_be_shared_and_are_not_are_refused():
    pairs = [(ratios(), ratios())] * 2
    with pytest.raises(ValueError, match="every seed must be tested on the same patients"):
        change_interval_over_seeds(pairs, [PATIENTS, [f"x{name}" for name in PATIENTS]], patients_shared=True)


def test_few_patients_and_equal_values_have_no_interval():
    few = figure_interval([Sums("bleu", (1, 2, 2, 2))] * 4, ["a", "b", "c", "d"])
    assert (few.value, few.low) == (pytest.approx(0.5), None)
    assert few.note == "too few patients (4 of at least 20)"
    equal = figure_interval([3.0] * 80, PATIENTS)
    assert (equal.value, equal.low, equal.note) == (3.0, None, "no interval: all values are equal")
    assert figure_interval([Sums("ratio", (0, 0))] * 80, PATIENTS) is None
