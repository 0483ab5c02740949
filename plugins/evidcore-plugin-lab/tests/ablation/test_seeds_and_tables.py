"""What the intervals over seeds and the p values of a table may be, whichever way they are computed."""

import itertools

import numpy as np
import pytest
from evidcore_plugin_lab.ablation.contrasts import Arms, Item

from evidcore.contracts import Sums
from evidcore.evaluate.bootstrap import holm

P_VALUES = (0.001, 0.011, 0.012, 0.04, 0.04, 0.3, 0.9)


def width(*, patients_shared, seeds=9, patients=40):
    """The width of the interval of an arm whose seeds differ by little and see equally varied patients."""
    values = np.linspace(0, 1, patients)
    arm = {
        seed: {
            f"q{number}": Item(
                f"{'' if patients_shared else seed}p{number}", Sums("ratio", (value + 0.001 * seed, 1.0))
            )
            for number, value in enumerate(values)
        }
        for seed in range(seeds)
    }
    found = Arms({"a": arm}, patients_shared=patients_shared).contrast({"a": 1.0})
    return found.high - found.low


def test_seeds_with_patients_of_their_own_tell_more_than_seeds_that_share_them():
    one_seed = 2 * 1.96 * np.linspace(0, 1, 40).std() / 40**0.5
    assert width(patients_shared=True) > 0.8 * one_seed  # nine looks at 40 patients
    assert width(patients_shared=False) < 0.6 * one_seed  # 360 patients


@pytest.mark.parametrize("order", list(itertools.permutations(range(4)))[::5])
def test_a_smaller_p_value_stays_the_smaller_one_in_its_table(order):
    some = [P_VALUES[index] for index in order]
    pairs = sorted(zip(some, holm(some), strict=True))
    adjusted = [value for _, value in pairs]
    assert adjusted == sorted(adjusted)
    assert all(after >= before for before, after in pairs)


def test_holm_is_what_testing_step_by_step_refuses():
    adjusted = dict(zip(P_VALUES, holm(P_VALUES), strict=True))
    for level in np.linspace(0.001, 0.999, 400):
        refused = set()
        for rank, p_value in enumerate(sorted(P_VALUES)):  # until the first that stands
            if p_value > level / (len(P_VALUES) - rank):
                break
            refused.add(p_value)
        assert refused == {p_value for p_value, value in adjusted.items() if value <= level}
