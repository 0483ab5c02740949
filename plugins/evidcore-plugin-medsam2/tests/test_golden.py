"""The full model against logits of SAM 2.1's own predictor, stored in golden/."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "medsam2_parity.py"


@pytest.fixture
def parity(tmp_path, monkeypatch):
    """The benchmark's module."""
    monkeypatch.setenv("EVID_CACHE", str(tmp_path / "cache"))
    spec = importlib.util.spec_from_file_location("medsam2_parity", SCRIPT)
    parity = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "medsam2_parity", parity)  # dataclasses look their module up
    spec.loader.exec_module(parity)
    return parity


@pytest.mark.slow
def test_signs_are_the_predictors_in_float32_where_weights_are_calm(parity, tmp_path):
    golden = np.load(parity.CALM)
    for row in parity.measure_calm(tmp_path, golden):
        assert row.signs >= 0.99999, row
        assert max(row.key_most, row.tracked_most) < 1e-4 * row.size, row
    marked = [float((golden[name][parity.KEY + 1 :] > 0).mean()) for name in ("box", "mask")]
    assert all(0.1 < share < 0.9 for share in marked)  # neither all nor nothing: there are signs to differ


@pytest.mark.slow
def test_the_predictors_logits_are_reproduced(parity, tmp_path):
    golden = np.load(parity.GOLDEN)
    assert golden["key"] == parity.KEY
    assert golden["box_xyxy"].tolist() == [parity.X0, parity.Y0, parity.X1, parity.Y1]
    box, mask, box_in_float32, mask_in_float32, stock_box, stock_mask = parity.measure(tmp_path, golden)
    # The predictor ran in float32: what is left in float64 is its own rounding, and grows over the slices.
    assert box.key_most < 5e-3, box
    assert box.signs >= 0.9997, box
    assert mask.key_most < 1e-5, mask
    assert mask.signs >= 0.9995, mask
    for row in (box_in_float32, mask_in_float32):  # each machine rounds otherwise
        assert row.signs >= 0.997, row
    assert box_in_float32.tracked_mean == pytest.approx(stock_box.tracked_mean, rel=0.02)
    assert stock_mask.tracked_mean > 5 * max(mask.tracked_mean, mask_in_float32.tracked_mean)
    said = parity.follow(tmp_path, "float32", "cpu", 3)
    assert said.startswith("3 slices, float32 on cpu: ")
