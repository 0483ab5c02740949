import itertools
import math
import random
import statistics

import numpy as np
import pytest
from evidcore_plugin_lab.ablation.contrasts import Arms, Item, over_seeds
from scipy import stats

from evidcore.api import mean_interval, paired_interval
from evidcore.contracts import Totals
from evidcore.evaluate.bootstrap import TIED, detectable, figure_interval

RNG = np.random.default_rng(7)
PATIENTS = [f"p{index // 2}" for index in range(80)]


def items_of(figures, owners=PATIENTS):
    return {f"r{index}": Item(*pair) for index, pair in enumerate(zip(owners, figures, strict=True))}


@pytest.mark.parametrize("same", [-0.3, 0.0, 0.25, 1 / 3, 0.5])
def test_a_tie_between_arms_has_no_interval(same):
    arms = Arms({"a": {0: flat(12, 30)}, "b": {0: shifted(flat(12, 30), same)}}, patients_shared=True)
    contrast = arms.contrast({"b": 1.0, "a": -1.0})
    assert (contrast.low, contrast.standard_error, contrast.p_value) == (None, None, None)
    assert (contrast.value, contrast.note) == (pytest.approx(same), TIED)


def ratios():
    below = RNG.integers(1, 6, 80)
    above = RNG.binomial(below, 0.4)
    return [Totals("ratio", (float(a), float(b))) for a, b in zip(above, below, strict=True)]


@pytest.mark.parametrize(
    ("kind", "said"),
    [("ratio", (1.0, 2.0)), ("difference", (1.0, 2.0, 1.0, 4.0)), ("mean_ratio", (1.0, 2.0, 0.0, 0.0))],
)
def test_no_interval_rests_on_patients_who_add_nothing(kind, said):
    silent = Totals(kind, (0.0,) * len(said))
    figures = [Totals(kind, said)] * 38 + [silent] * 42  # 19 patients of 40 add something
    noted = "too few patients (19 of at least 20)"
    full = items_of(figures)
    half = full | {"r0": Item("p0", silent), "r1": Item("p0", silent)}
    for shared in (True, False):
        arms = Arms({"a": {0: half, 1: half}, "b": {0: full, 1: full}}, patients_shared=shared)
        result = arms.contrast({"b": 1, "a": -1})
        assert (result.note, result.patients) == (noted, 19 if shared else 38)


def test_patients_who_add_nothing_move_no_interval():
    some, silent = ratios(), [Totals("ratio", (0.0, 0.0))] * 20
    owners = [*PATIENTS, *(f"silent-{index}" for index in range(20))]
    items = items_of([*some, *silent], owners)
    arm, alone = Arms({"a": {0: items}}, patients_shared=True), figure_interval(some, PATIENTS)
    result = arm.contrast({"a": 1.0})
    assert (result.low, result.high, result.patients) == (alone.low, alone.high, 40)


def test_seeds_that_share_patients_may_differ_in_who_adds_something():
    silent = Totals("ratio", (0.0, 0.0))
    early, late = [*ratios()[:60], *[silent] * 20], [*[silent] * 20, *ratios()[:60]]
    result = Arms({"a": {0: items_of(early), 1: items_of(late)}}, patients_shared=True).contrast({"a": 1.0})
    assert result.low < result.value < result.high
    assert result.patients == 40


def answered(patient, above, below):
    return Item(patient, Totals("ratio", (above, below)))


def drawn(chance, *, seed, patients=60, questions=3, owner="p"):
    """Draw right and wrong answers of one cell; patients differ in how hard they are."""
    rng = np.random.default_rng(seed)
    hard = np.random.default_rng(99).normal(0, 0.2, patients)
    return {
        f"q{patient}-{number}": answered(
            f"{owner}{patient}", float(rng.random() < chance + hard[patient]), 1.0
        )
        for patient in range(patients)
        for number in range(questions)
    }


def cells(chances, **shape):
    """Return arm -> seed -> items for arm -> chance of each seed."""
    return {
        arm: {seed: drawn(chance, seed=1000 * index + seed, **shape) for seed, chance in enumerate(some)}
        for index, (arm, some) in enumerate(chances.items())
    }


def flat(value, patients=25):
    """A cell in which `value` of the patients' one question each are right."""
    return {f"q{index}": answered(f"p{index}", float(index < value), 1.0) for index in range(patients)}


def shifted(items, change):
    """Return items whose every figure is larger by `change`."""
    return {name: answered(item.patient, item.sums.numbers[0] + change, 1.0) for name, item in items.items()}


def figure(pooling, numbers):
    """Return a figure of sums in plain Python."""
    a, b = numbers[:2]
    if pooling == "ratio":
        return a / b
    c, d = numbers[2:]
    return a / b - c / d if pooling == "difference" else (a / b + c / d) / 2


def looped_over_seeds(found, weights, draws, *, pooling="ratio", patients_shared=False):
    """The t over seeds and patients in plain loops: the ends of its interval."""
    rng, drawn = random.Random(5), []
    seeds = sorted(found["a"])
    patients = {seed: sorted({item.patient for item in found["a"][seed].values()}) for seed in seeds}

    def value(seed, picked):
        total = 0.0
        for arm, weight in weights.items():
            own = {name: [] for name in patients[seed]}
            for item in found[arm][seed].values():
                own[item.patient].append(item.sums.numbers)
            pooled = [numbers for patient in picked for numbers in own[patient]]
            total += weight * figure(pooling, [sum(side) for side in zip(*pooled, strict=True)])
        return total

    for _ in range(draws):
        draw, picked = [], None
        for seed in seeds:
            if picked is None or not patients_shared:
                picked = rng.choices(patients[seed], k=len(patients[seed]))
            draw.append(value(seed, picked))
        drawn.append(draw)
    columns = list(zip(*drawn, strict=True))
    k, values = len(seeds), [value(seed, patients[seed]) for seed in seeds]
    own = sum(statistics.variance(column) for column in columns) / k
    pairs = list(itertools.combinations(columns, 2)) if patients_shared else []
    common = max(0.0, sum(statistics.covariance(*pair) for pair in pairs) / len(pairs)) if pairs else 0.0
    between = statistics.variance(values)
    variance = common + between / k
    seen, free = 2 * max(between, own - common) / k, len(patients[seeds[0]]) - 1
    free = (common + seen) ** 2 / (seen**2 / (k - 1) + common**2 / free)
    return stats.t.interval(0.95, free, loc=sum(values) / k, scale=math.sqrt(variance))


@pytest.mark.parametrize("patients_shared", [True, False])
@pytest.mark.parametrize("pooling", ["ratio", "mean_ratio", "difference"])
def test_every_pooling_over_seeds_agrees_with_a_bootstrap_loop(pooling, patients_shared):
    rng = np.random.default_rng(3)

    def cell(gain):
        above, below = rng.poisson(2 + gain, (40, 2)), rng.poisson(5, (40, 2)) + 3
        numbers = np.stack([above[:, 0], below[:, 0], above[:, 1], below[:, 1]], axis=1).astype(float)
        rows = numbers[:, : 2 if pooling == "ratio" else 4].tolist()
        return {f"r{at}": Item(f"p{at % 30}", Totals(pooling, tuple(row))) for at, row in enumerate(rows)}

    result = {"a": {seed: cell(0) for seed in range(3)}, "b": {seed: cell(1) for seed in range(3)}}
    weights = {"b": 1.0, "a": -1.0}
    ours = Arms(result, patients_shared=patients_shared).contrast(weights)
    by_hand = [
        figure(pooling, np.sum([item.sums.numbers for item in result["b"][seed].values()], axis=0))
        - figure(pooling, np.sum([item.sums.numbers for item in result["a"][seed].values()], axis=0))
        for seed in range(3)
    ]
    assert list(ours.by_seed.values()) == pytest.approx(by_hand)
    assert ours.value == pytest.approx(sum(by_hand) / 3)
    low, high = looped_over_seeds(result, weights, 2000, pooling=pooling, patients_shared=patients_shared)
    assert ours.low == pytest.approx(low, abs=0.08 * (high - low))
    assert ours.high == pytest.approx(high, abs=0.08 * (high - low))
    assert (ours.items, ours.patients) == (120, 30 if patients_shared else 90)


def test_one_seed_is_the_sample_itself_or_the_paired_one():
    """The interval of an evaluation's row and of an ablation's arm are one, to the last bit."""
    first, second = drawn(0.4, seed=1), drawn(0.6, seed=2)
    arms = Arms({"a": {7: first}, "b": {7: second}}, patients_shared=True)
    owners = [item.patient for item in first.values()]
    values, others = ([item.sums.numbers[0] for item in side.values()] for side in (first, second))
    contrast, row = arms.contrast({"a": 1.0}), mean_interval(values, owners)
    assert (contrast.value, contrast.low, contrast.high) == (row.value, row.low, row.high)
    assert (contrast.items, contrast.patients) == (row.values, row.patients)
    contrast, paired = arms.contrast({"b": 1, "a": -1}), paired_interval(others, values, owners)
    ends = (paired.value, paired.low, paired.high)
    assert (contrast.value, contrast.low, contrast.high) == pytest.approx(ends, abs=1e-12)


def test_an_answer_whose_figure_is_missing_in_one_arm_is_left_out_and_said():
    first, second = flat(10), flat(15)
    second["q0"] = Item("p0", None)
    result = Arms({"a": {0: first}, "b": {0: second}}, patients_shared=True)
    contrast = result.contrast({"b": 1, "a": -1})
    assert contrast.value == pytest.approx(5 / 24)
    assert (contrast.items, contrast.patients) == (24, 24)
    assert contrast.note.startswith("1 of 25 answers lack it in an arm; 1 seed")
    assert result.contrast({"a": 1}).value == pytest.approx(10 / 25)


def test_main_effects_and_interaction_are_their_hand_values():
    right = {"off+off": 5, "off+on": 10, "on+off": 8, "on+on": 20}
    arms = Arms({name: {1: flat(count)} for name, count in right.items()}, patients_shared=True)
    first = {"on+off": 0.5, "on+on": 0.5, "off+off": -0.5, "off+on": -0.5}
    both = {"on+on": 1.0, "off+off": 1.0, "on+off": -1.0, "off+on": -1.0}
    assert arms.contrast(first).value == pytest.approx(((20 - 10) + (8 - 5)) / 2 / 25)
    assert arms.contrast(both).value == pytest.approx(((20 - 10) - (8 - 5)) / 25)


def test_over_seeds_with_patients_of_their_own_it_is_the_t_test_of_the_paired_differences():
    values = np.array([0.139, 0.022, 0.084, 0.051, 0.117])
    result = over_seeds(values, np.diag([0.018**2] * 5), patient_degrees=99)
    theirs = stats.ttest_1samp(values, 0)
    ends = theirs.confidence_interval(0.95)
    assert (result.low, result.high) == pytest.approx((ends.low, ends.high))
    assert (result.p_value, result.degrees_of_freedom) == pytest.approx((theirs.pvalue, 4))
    assert result.standard_error == pytest.approx(stats.sem(values))
    apart = np.diag([0.3**2] * 5)  # patients of their own are within the spread of the seeds
    assert over_seeds(values, apart, patient_degrees=99) == over_seeds(values, 0 * apart, patient_degrees=99)
    assert over_seeds(np.full(5, 0.1), apart, patient_degrees=99) is None


def test_seeds_that_give_the_same_by_chance_have_no_interval():
    result = {"a": {0: flat(12), 1: flat(12)}, "b": {0: flat(15), 1: flat(15)}}
    contrast = Arms(result, patients_shared=False).contrast({"b": 1, "a": -1})
    assert (contrast.low, contrast.note) == (None, "no interval: every seed gives the same")


def test_patients_that_seeds_share_do_not_average_out():
    """Against the analysis of variance of seeds crossed with patients, one paired difference a cell."""
    rng = np.random.default_rng(4)
    k, n = 5, 60
    table = 0.05 + rng.normal(0, 0.08, (k, 1)) + rng.normal(0, 0.3, (1, n)) + rng.normal(0, 0.4, (k, n))
    rows, columns, mean = table.mean(axis=1), table.mean(axis=0), table.mean()
    by_seed = n * ((rows - mean) ** 2).sum() / (k - 1)
    by_patient = k * ((columns - mean) ** 2).sum() / (n - 1)
    rest = ((table - rows[:, None] - columns + mean) ** 2).sum() / ((k - 1) * (n - 1))
    assert by_seed > rest
    result = {
        arm: {
            seed: {f"q{at}": answered(f"p{at}", number * sign, 1.0) for at, number in enumerate(row)}
            for seed, row in enumerate(table)
        }
        for arm, sign in (("a", 0.0), ("b", 1.0))
    }
    contrast = Arms(result, patients_shared=True).contrast({"b": 1.0, "a": -1.0})
    expected = math.sqrt((by_seed + by_patient - rest) / (k * n))
    assert contrast.standard_error == pytest.approx(expected, rel=0.02)
    apart = Arms(result, patients_shared=False).contrast({"b": 1.0, "a": -1.0})
    assert apart.standard_error == pytest.approx(math.sqrt(by_seed / (k * n)), rel=0.02)
    assert apart.degrees_of_freedom == pytest.approx(4)
    assert contrast.degrees_of_freedom > 4


@pytest.mark.parametrize("seeds", [1, 2, 4, 5])
def test_under_five_seeds_there_is_no_test_and_from_then_on_p_has_no_floor(seeds):
    result = cells({"a": [0.3] * seeds, "b": [0.7] * seeds})
    contrast = Arms(result, patients_shared=False).contrast({"b": 1, "a": -1})
    noted = "1 seed: patients alone, no test" if seeds == 1 else f"{seeds} seeds: no test"
    assert contrast.note == (noted if seeds < 5 else "")
    assert 0 < contrast.low < contrast.value < contrast.high
    if seeds < 5:
        assert contrast.p_value is None
    else:
        assert contrast.p_value < 1 / 4001  # of as many draws


@pytest.mark.slow
@pytest.mark.parametrize("patients_shared", [True, False])
@pytest.mark.parametrize("spread", [0.0, 0.02, 0.05])
@pytest.mark.parametrize("seeds", [5, 8])
def test_whole_ablations_without_a_difference_earn_a_star_in_one_of_20(spread, patients_shared, seeds):
    rng = np.random.default_rng(3)
    stars = held = 0
    experiments, patients = 600, 120
    for number in range(experiments):
        shape = (1 if patients_shared else seeds, patients, 1)
        hard, suits = rng.normal(0.5, 0.2, shape), rng.normal(0, 0.15, shape)
        trained = rng.normal(0, spread, (seeds, 1, 1))
        result = {}
        for arm, side in (("a", -1), ("b", 1)):
            right = rng.random((seeds, patients, 2)) < hard + side * (suits + trained) / 2
            result[arm] = {
                seed: {
                    f"q{patient}-{question}": answered(
                        f"p{patient}" if patients_shared else f"{seed}p{patient}",
                        float(right[seed, patient, question]), 1.0,
                    )
                    for patient in range(patients)
                    for question in range(2)
                }
                for seed in range(seeds)
            }  # fmt: skip
        arms = Arms(result, patients_shared=patients_shared, draws=300, seed=number)
        contrast = arms.contrast({"b": 1, "a": -1})
        stars += contrast.p_value < 0.05
        held += contrast.low <= 0 <= contrast.high
    assert stats.binom.sf(stars - 1, experiments, 0.05) > 1e-3
    assert 0.92 * experiments <= held <= 0.98 * experiments


def test_over_seeds_the_detectable_difference_is_found_in_4_of_5_experiments():
    rng = np.random.default_rng(1)
    error, seeds = 0.03, 6
    reach = detectable(error / math.sqrt(seeds), degrees_of_freedom=seeds - 1)
    values = rng.normal(reach, error, (2000, seeds))
    p_values = [over_seeds(row, np.zeros((seeds, seeds)), patient_degrees=99).p_value for row in values]
    assert np.mean([p < 0.05 for p in p_values]) == pytest.approx(0.8, abs=0.04)


def test_a_seed_that_an_arm_lacks_is_left_out():
    result = cells({"a": [0.4, 0.5, 0.45], "b": [0.55, 0.5, 0.6]})
    del result["b"][1]
    contrast = Arms(result, patients_shared=False).contrast({"b": 1, "a": -1})
    assert sorted(contrast.by_seed) == [0, 2]
    assert sorted(Arms(result, patients_shared=False).contrast({"a": 1}).by_seed) == [0, 1, 2]
    nothing = Arms({"a": {0: flat(3)}, "b": {1: flat(3)}}, patients_shared=True).contrast({"b": 1, "a": -1})
    assert (nothing.value, nothing.note) == (None, "no seed is finished in all of its arms")


def test_what_cannot_be_told_is_not_told():
    few = Arms({"a": {0: flat(3, 10)}}, patients_shared=True).contrast({"a": 1})
    assert (few.value, few.low, few.note) == (0.3, None, "too few patients (10 of at least 20)")
    empty = Arms({"a": {0: {"q": answered("p", 0.0, 0.0)}}}, patients_shared=True).contrast({"a": 1})
    assert (empty.value, empty.note) == (None, "an arm has nothing to divide by")


def test_other_questions_are_refused():
    pair = {"a": {4: flat(3, 22)}, "b": {4: flat(3, 25)}}
    with pytest.raises(ValueError, match="under seed 4, 0 are only in 'a', 3 only in 'b'"):
        Arms(pair, patients_shared=True).contrast({"b": 1, "a": -1})
    moved = {"a": {0: flat(3), 1: {"q": answered("else", 1.0, 1.0), **flat(3)}}}
    with pytest.raises(ValueError, match="every seed must be tested on the same patients"):
        Arms(moved, patients_shared=True).contrast({"a": 1})
