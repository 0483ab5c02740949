"""What explains a reader's answers, by hand; test_settling.py has a reader of each habit."""

import pytest
from evidcore_plugin_emrl.reader_habits import Look, habits


def test_the_shares_by_hand():
    """Of 12 slices with a lesion it misses the four scars; on the 36 without one it says nothing."""
    looks, names = [], ("cyst", "stone", "scar")
    for number in range(12):
        for z in range(4):
            shows = frozenset({names[number % 3]}) if z == 1 else frozenset()
            looks.append(
                Look(patient=f"p{number}", height=(z + 0.5) / 4, shows=shows, named=shows - {"scar"})
            )
    result = habits(looks)
    assert result.goes_by == "lesions"
    assert result.explained["lesions"] == pytest.approx((8 / 12 + 1) / 2)
    assert result.explained["always"] == pytest.approx((4 / 12 + 1) / 2)  # nothing, foretold of all
    assert result.always == frozenset()
