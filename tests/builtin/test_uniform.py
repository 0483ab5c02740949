from __future__ import annotations

from evidcore.builtin.uniform import Uniform
from evidcore.testing.checks_text import check_reweighter


def test_it_keeps_the_contract_of_a_reweighter():
    check_reweighter(Uniform())


def test_every_token_weighs_one():
    assert Uniform()("abc", (), [(0, 1), (1, 3), (3, 3)]) == [1.0, 1.0, 1.0]
