import json
import math
import re

import pytest

from evidcore.page.charts import Curve, Lane, curves, lanes


def test_a_lane_places_value_interval_and_lines_on_its_axis():
    row = Lane(label="a <b>", value=0.75, low=0.5, high=0.875, lines={"uniform_chance": 0.25})
    drawn = lanes([row], start=0.0, stop=1.0, unit="rate", caption="seen")
    assert 'cx="75.00%"' in drawn
    assert re.search(r'x1="50.00%" x2="87.50%"[^>]*class="spread"', drawn)
    assert re.search(r'x1="25.00%" x2="25.00%"[^>]*class="line uniform-chance"', drawn)
    assert "a &lt;b&gt;" in drawn
    assert "75.0 %" in drawn


def test_differences_have_zero_in_the_middle_and_a_sign():
    drawn = lanes([Lane(label="m", value=-0.042)], start=-1.0, stop=1.0, unit="points", caption="")
    assert re.search(r'x1="50.00%" x2="50.00%"[^>]*class="zero"', drawn)
    assert "\N{MINUS SIGN}4.2" in drawn


def test_a_lane_without_an_interval_draws_none():
    drawn = lanes([Lane(label="m", value=0.5)], start=0.0, stop=1.0, unit="rate", caption="")
    assert "spread" not in drawn


def test_curves_carry_every_value_for_the_tooltip():
    steps, values = list(range(1, 501)), [math.sin(step / 40) for step in range(1, 501)]
    drawn = curves("Loss", [Curve(label="total", steps=steps, values=values)])
    data = json.loads(re.findall(r'class="points">(.*?)</script>', drawn)[0])
    assert data["curves"] == [{"label": "total", "steps": steps, "values": values}]
    assert f"Loss: total from {values[0]:.4g} to" in drawn


def test_curves_stay_inside_their_frame():
    drawn = curves("x", [Curve(label="a", steps=[1, 2, 3], values=[-5.0, 2e6, 0.0])])
    points = re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", re.findall(r'<path d="([^"]*)"', drawn)[0])
    assert len(points) == 3
    assert all(46 <= float(x) <= 348 and 10 <= float(y) <= 164 for x, y in points)


@pytest.mark.parametrize("values", [[0.5], [0.0, 0.0], [3.0, 3.0, 3.0], [-2.0, -2.0]])
def test_flat_and_single_values_are_drawn(values):
    drawn = curves("x", [Curve(label="a", steps=list(range(len(values))), values=values)])
    assert "nan" not in drawn
    assert "<path" in drawn


def test_values_that_are_not_numbers_are_said_not_drawn():
    assert "No finite value was logged." in curves("x", [Curve(label="a", steps=[1], values=[math.nan])])
