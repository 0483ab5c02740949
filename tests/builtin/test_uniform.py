from evidcore_testing.checks_text import check_reweighter

from evidcore.builtin.uniform import Uniform


def test_it_keeps_the_contract_of_a_reweighter():
    check_reweighter(Uniform())


def test_every_token_weighs_one():
    assert Uniform()("abc", (), [(0, 1), (1, 3), (3, 3)]) == [1.0, 1.0, 1.0]
