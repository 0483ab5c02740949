import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evidcore.recipe.lines import key_lines, line_of
from evidcore.recipe.resolve import toml_key, toml_value

TEXT = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")


def test_every_key_table_and_item_has_its_line():
    assert tomllib.loads(TEXT)["s"][1] == {"r": {"p": True}}
    assert key_lines(TEXT) == {
        (): 1, ("a",): 1, ("q.r",): 2, ("t",): 5, ("t", "u"): 5, ("t", "u", "v"): 6, ("t", "u", "v", 0): 6,
        ("t", "u", "v", 1): 7, ("t", "u", "v", 2): 7, ("t", "u", "v", 2, "w"): 7, ("t", "u", "v", 2, "z"): 7,
        ("t", "u", "v", 2, "z", 0): 7, ("s",): 9, ("s", 0): 9, ("s", 0, "k"): 10, ("s", 0, "r"): 11,
        ("s", 0, "r", 0): 11, ("s", 0, "r", 0, "n"): 12, ("s", 0, "r", 0, "n", "m"): 12, ("s", 0, "r", 1): 13,
        ("s", 0, "r", 1, "o"): 14, ("s", 1): 15, ("s", 1, "r"): 16, ("s", 1, "r", "p"): 17,
    }  # fmt: skip


def test_a_key_that_was_not_written_has_the_line_of_what_is_around_it():
    lines = key_lines(TEXT)
    assert line_of(lines, ("s", 0, "r", 1, "missing", 3)) == 13
    assert line_of(lines, ("nowhere",)) == 1


def test_line_ends_of_windows_count_once():
    assert key_lines("a = 1\r\n\r\nb = 2\r\n")[("b",)] == 3


values = st.recursive(
    st.text(max_size=5)
    | st.integers(-99, 99)
    | st.booleans()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.text(min_size=1, max_size=3), values, min_size=1, max_size=4))
def test_whatever_is_written_is_read_back_with_one_line_for_each_key(tables):
    text = "\n".join(f"{toml_key(key)} = {toml_value(value)}" for key, value in tables.items())
    assert tomllib.loads(text) == tables
    assert [key_lines(text)[(key,)] for key in tables] == list(range(1, len(tables) + 1))
