import pytest
from evidcore_testing.checks_text import check_scorer

from evidcore.builtin.scorers import TokenF1


def test_it_keeps_the_contract_of_a_scorer():
    check_scorer(TokenF1())


def test_token_f1_counts_words_with_repetition():
    # 3 of 4 words shared with 3 of 5: 2 * 3 / 9
    assert TokenF1()(["No NODULE, no mass"], ["no nodule. No effusion seen"]) == [pytest.approx(6 / 9)]
    assert TokenF1()(["", "word"], ["", ""]) == [1.0, 0.0]
