import pytest

from evidcore.compute.loading import share_of_peak


def test_the_rate_rises_then_falls_along_a_cosine():
    rates = [share_of_peak(step, 1000) for step in range(1000)]
    assert rates[0] == pytest.approx(1 / 60, rel=0.01)
    assert max(rates) == pytest.approx(1, abs=0.02)
    assert rates[500] == pytest.approx(0.5)
    assert rates[-1] < 1e-4
    assert share_of_peak(0, 1) == 1
