import hashlib

import pytest
from evidcore_plugin_med3d_r1.reweighter import Abnormality
from evidcore_plugin_reports.labelers import NegationRules, Phrases
from evidcore_plugin_reports.labels_file import LabelsFile
from evidcore_testing.checks_text import check_reweighter

from evidcore.api import Span
from evidcore.contracts import LabelError

TEXT = "No effusion. There is a nodule."
SPANS = (Span(start=0, end=12, label="normal"), Span(start=13, end=31, label="abnormal"))


def test_only_tokens_of_abnormal_sentences_gain_weight():
    offsets = [(0, 2), (2, 11), (11, 12), (12, 18), (18, 30), (30, 31), (31, 31)]
    assert Abnormality()(TEXT, SPANS, offsets) == [1.0, 1.0, 1.0, 1.10, 1.10, 1.10, 1.0]


def test_a_token_that_reaches_into_an_abnormal_sentence_belongs_to_it():
    assert Abnormality(gain=2.0)(TEXT, SPANS, [(11, 14), (10, 13)]) == [2.0, 1.0]


def test_it_keeps_the_contract_of_a_reweighter():
    check_reweighter(Abnormality())


@pytest.mark.parametrize("labeler", [NegationRules(), Phrases()], ids=["negation-rules", "phrases"])
def test_a_labeler_tells_abnormal_sentences_in_place_of_the_given_labels(labeler):
    text = "No pleural effusion. There is a lung nodule. The bones are intact."
    given = (Span(start=0, end=len(text), label="abnormal"),)
    offsets = [(0, 20), (21, 32), (32, 44), (45, 66), (66, 66)]
    assert Abnormality(gain=2.0, labeler=labeler)(text, given, offsets) == [1.0, 2.0, 2.0, 1.0, 1.0]
    check_reweighter(Abnormality(labeler=labeler))


def test_a_text_that_a_labeler_cannot_read_is_not_weighed_as_normal(tmp_path):
    content = b'{"schema": 1, "cases": {}}'
    (tmp_path / "labels.json").write_bytes(content)
    labeler = LabelsFile(tmp_path, path="labels.json", sha256=hashlib.sha256(content).hexdigest())
    with pytest.raises(LabelError, match="holds no text with sha256"):
        Abnormality(labeler=labeler)(TEXT, SPANS, [(0, 31)])
