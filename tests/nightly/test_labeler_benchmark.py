"""The figures of the labelers are what another library makes of the same readings."""

import numpy as np
import pytest
from evidcore_plugin_reports.findings import CT_RATE_FINDINGS
from evidcore_plugin_reports.labelers import Phrases
from sklearn.metrics import f1_score, precision_recall_fscore_support

SCRIPT = "labeler"


def made(count=40):
    """Rows whose text affirms a finding with one probability where it is true and another where it is not."""
    rng = np.random.default_rng(3)
    rows, told, true = [], [], []
    for number in range(count):
        is_true = rng.random(18) < 0.5
        is_told = rng.random(18) < np.where(is_true, 0.8, 0.2)
        pairs = zip(CT_RATE_FINDINGS, is_told, strict=True)
        text = " ".join(f"There is {name}." if one else f"No {name}." for name, one in pairs)
        rows.append((f"row_{number}", text, dict(zip(CT_RATE_FINDINGS, map(bool, is_true), strict=True))))
        told.append(is_told)
        true.append(is_true)
    return rows, np.array(told), np.array(true)


def test_precision_recall_and_f1_are_those_of_scikit_learn(script):
    rows, told, true = made()
    found = script.measure(Phrases(), rows)
    precision, recall, f1, support = precision_recall_fscore_support(true, told)
    for index, name in enumerate(CT_RATE_FINDINGS):
        one = found["findings"][name]
        assert one["precision"] == pytest.approx(precision[index])
        assert one["recall"] == pytest.approx(recall[index])
        assert one["f1"] == pytest.approx(f1[index])
        assert one["reports"] == support[index]
        assert one["low"] < one["f1"] < one["high"]
        assert one["errors"].get("false alarm", 0) == (told[:, index] & ~true[:, index]).sum()
        assert one["errors"].get("denied", 0) == (~told[:, index] & true[:, index]).sum()
    assert found["macro_f1"] == pytest.approx(f1_score(true, told, average="macro"))
    assert found["low"] < found["macro_f1"] < found["high"]


def test_no_text_stands_in_both_halves(script):
    rows = [(f"row_{number}", f"text {number % 7}", {}) for number in range(60)]
    halves = {half: script.one_half(rows, half) for half in script.HALVES}
    texts = [{text for _, text, _ in some} for some in halves.values()]
    assert not texts[0] & texts[1]
    alone = [(f"row_{number}", f"text {number}", {}) for number in range(60)]
    counts = [len(script.one_half(alone, half)) for half in script.HALVES]
    assert sum(counts) == 60
    assert min(counts) > 15


def test_what_is_printed_holds_figures_and_no_text(script):
    rows, *_ = made()
    found = {"half": "tune", "reports": 40, "left_out": 0, "labelers": {"a": script.measure(Phrases(), rows)}}
    printed = "\n".join(script.written(found))
    assert "There is" not in printed
    assert "row_" not in printed
    assert f"macro F1 {found['labelers']['a']['macro_f1']:.3f}" in printed


def test_the_rules_still_read_as_well_as_is_said(script, real_data):
    """On the half that they were tuned on; the other is for measuring."""
    from evidcore_plugin_reports.labelers import NegationRules

    rows = script.one_half(list(script.rows(real_data / "ctrate_reports" / "train.csv")), "tune")
    assert script.measure(NegationRules(), rows)["macro_f1"] > 0.93
