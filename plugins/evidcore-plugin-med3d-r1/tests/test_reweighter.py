from __future__ import annotations

from evidcore_plugin_med3d_r1.reweighter import Abnormality

from evidcore.case import Span
from evidcore.testing.checks_text import check_reweighter

TEXT = "No effusion. There is a nodule."
SPANS = (Span(start=0, end=12, label="normal"), Span(start=13, end=31, label="abnormal"))


def test_only_tokens_of_abnormal_sentences_gain_weight():
    offsets = [(0, 2), (2, 11), (11, 12), (12, 18), (18, 30), (30, 31), (31, 31)]
    assert Abnormality()(TEXT, SPANS, offsets) == [1.0, 1.0, 1.0, 1.10, 1.10, 1.10, 1.0]


def test_a_token_that_reaches_into_an_abnormal_sentence_belongs_to_it():
    assert Abnormality(gain=2.0)(TEXT, SPANS, [(11, 14), (10, 13)]) == [2.0, 1.0]


def test_gain_of_one_weighs_everything_the_same():
    assert Abnormality(gain=1.0)(TEXT, SPANS, [(0, 12), (13, 31)]) == [1.0, 1.0]


def test_text_without_labels_is_left_alone():
    assert Abnormality()(TEXT, (), [(0, 31)]) == [1.0]


def test_it_keeps_the_contract_of_a_reweighter():
    check_reweighter(Abnormality())
