"""What explains a reader's answers, by hand."""

import pytest
from evidcore_plugin_emrl.reader_habits import Look, habits

NAMES = ("cyst", "stone", "scar")


def looks(named):
    """Twelve patients with four slices each, the second of which shows one finding."""
    result = []
    for number in range(12):
        for z in range(4):
            shows = frozenset({NAMES[number % 3]}) if z == 1 else frozenset()
            said = frozenset(named(number, z, shows))
            result.append(Look(patient=f"p{number}", height=(z + 0.5) / 4, shows=shows, named=said))
    return result


@pytest.mark.parametrize(
    ("named", "goes_by"),
    [
        (lambda number, z, shows: shows, "lesions"),
        (lambda number, z, shows: {"cyst"}, "always"),
        (lambda number, z, shows: NAMES, "always"),
        (lambda number, z, shows: (), "always"),
        (lambda number, z, shows: {NAMES[z % 3]}, "height"),
        (lambda number, z, shows: {NAMES[number % 3]}, "patient"),
    ],
)
def test_each_habit_is_told_from_lesions(named, goes_by):
    result = habits(looks(named))
    assert result.goes_by == goes_by
    assert result.explained[goes_by] == 1.0


def test_the_shares_by_hand():
    """Of 12 slices with a lesion it misses the four scars; on slices without one it says nothing."""
    result = habits(looks(lambda number, z, shows: shows - {"scar"}))
    assert result.explained["lesions"] == pytest.approx((8 / 12 + 1) / 2)
    assert result.explained["always"] == pytest.approx((4 / 12 + 1) / 2)  # nothing, foretold of all
    assert result.always == frozenset()
