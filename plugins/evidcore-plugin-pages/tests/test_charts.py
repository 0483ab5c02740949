import json
import math
import re

import pytest
from evidcore_plugin_pages.charts import Branch, Curve, Lane, curves, forks, lanes


def test_a_lane_places_value_interval_and_lines_on_its_axis():
    row = Lane(label="a <b>", value=0.75, low=0.5, high=0.875, lines={"uniform_chance": 0.25})
    drawn = lanes([row], start=0.0, stop=1.0, unit="rate", caption="seen")
    assert 'cx="75.00%"' in drawn
    assert re.search(r'x1="50.00%" x2="87.50%"[^>]*class="spread"', drawn)
    assert re.search(r'x1="25.00%" x2="25.00%"[^>]*class="line uniform-chance"', drawn)
    assert "a &lt;b&gt;" in drawn
    assert "75.0 %" in drawn


def test_differences_have_zero_in_the_middle_and_a_sign_and_without_an_interval_none_is_drawn():
    drawn = lanes([Lane(label="m", value=-0.042)], start=-1.0, stop=1.0, unit="points", caption="")
    assert re.search(r'x1="50.00%" x2="50.00%"[^>]*class="zero"', drawn)
    assert "\N{MINUS SIGN}4.2" in drawn
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


def test_a_tree_draws_each_fork_below_its_parent_where_it_leaves_it():
    branches = [
        Branch(label="a", length=80),
        Branch(label="b", length=40),
        Branch(label="c<", length=100, parent=0, start=20),
        Branch(label="d", length=60, parent=2, start=50),
    ]
    drawn = forks(branches, "tree")
    lines = re.findall(r'x1="([\d.]+)%" x2="([\d.]+)%" y1="([\d.]+)" y2="([\d.]+)" class="(\w+)"', drawn)
    assert lines == [  # a, c below a, d below c, b
        ("0.00", "72.00", "11.0", "11.0", "branch"),
        ("18.00", "18.00", "11.0", "33.0", "fork"),
        ("18.00", "90.00", "33.0", "33.0", "branch"),
        ("45.00", "45.00", "33.0", "55.0", "fork"),
        ("45.00", "54.00", "55.0", "55.0", "branch"),
        ("0.00", "36.00", "77.0", "77.0", "branch"),
    ]
    assert "c&lt; leaves a at token 20; d leaves c&lt; at token 50" in drawn
