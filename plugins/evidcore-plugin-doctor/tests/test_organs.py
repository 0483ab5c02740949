import tomllib
from pathlib import Path

import numpy as np
import pytest
from evidcore_plugin_doctor.organs import CLEAR_MM, contradictions, organ

TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

PLACES = TABLE["places"]


def found(places: dict[str, tuple[float, float, float]]) -> list[tuple[str | None, str]]:
    return list(contradictions(places, dict.fromkeys(places, 10.0)))


def test_a_masks_name_says_which_organ_it_is():
    wanted = {mask: name or None for mask, name in TABLE["names"].items()}
    assert {mask: organ(mask) for mask in wanted} == wanted


def test_organs_in_their_places_contradict_nothing():
    assert found(PLACES) == []


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_an_axis_that_runs_backwards_is_named(axis):
    signs = 1 - 2 * np.eye(3)[axis]
    ((name, text),) = found({mask: tuple(signs * at) for mask, at in PLACES.items()})
    assert name == "zyx"[axis]
    assert text.endswith(("z runs downwards", "y runs to the front", "x runs to the right")[axis])


SWAPPED = {"kidney_left": PLACES["kidney_right"], "kidney_right": PLACES["kidney_left"]}
TOLD = "kidney left 120 mm to the right of kidney right"


def test_a_pair_alone_may_have_its_names_swapped():
    ((axis, text),) = found(SWAPPED)
    assert axis == "x"
    assert text == f"by its masks, {TOLD}: x runs to the right, or the names of the sides are swapped"


def test_swapped_names_among_right_ones_are_a_fault_of_the_masks():
    said = found(PLACES | SWAPPED)
    assert {axis for axis, _ in said} == {None}
    assert (None, f"{TOLD}, while other organs lie as they should") in said


def test_a_small_difference_says_nothing():
    near = {"liver": (0.0, 0.0, 0.0), "spleen": (0.0, 0.0, -CLEAR_MM + 1)}
    assert found(near) == []
    assert found(near | {"spleen": (0.0, 0.0, -CLEAR_MM - 1)}) != []


def test_parts_of_an_organ_count_by_their_size():
    places = {"lung_upper_lobe_left": (0.0, 0.0, 100.0), "lung_lower_lobe_left": (0.0, 0.0, -20.0)}
    places |= {"lung_right": (0.0, 0.0, 40.0)}
    sizes = {"lung_upper_lobe_left": 9, "lung_lower_lobe_left": 1, "lung_right": 5}
    assert list(contradictions(places, sizes)) == []
    ((_, text),) = contradictions(places, sizes | {"lung_upper_lobe_left": 1, "lung_lower_lobe_left": 9})
    assert "lung left 48 mm to the right of lung right" in text  # 0.1 * 100 - 0.9 * 20 = -8
