from __future__ import annotations

import re
from xml.etree import ElementTree

from evidcore_plugin_pages.jinja import environment


def test_a_density_is_drawn_as_steps_in_its_own_scale():
    rows = {"even": [1.0] * 4, "late": [0.0, 0.0, 0.0, 4.0]}
    figures = environment("evidcore_plugin_doctor").get_template("figures.html").module
    drawn = figures.densities("Places", rows, "start", "end", "of <one> set")
    tree = ElementTree.fromstring(drawn)
    paths = [path.get("d") for path in tree.iter("path")]
    points = [[tuple(map(float, pair.split())) for pair in path.lstrip("M").split("L")] for path in paths]
    assert [len(outline) for outline in points] == [8, 8]
    assert len({y for _, y in points[0]}) == 1
    xs = [x for x, _ in points[1]]
    assert xs == sorted(xs)
    gaps = {round(b - a, 1) for a, b in zip(xs[::2], xs[1::2], strict=True)}
    assert len(gaps) <= 2  # equal parts, but for rounding
    bottom, even, top = points[1][0][1], points[0][0][1], points[1][-1][1]
    assert abs((bottom - even) * 4 - (bottom - top)) < 0.5
    assert "of &lt;one&gt; set" in drawn
    assert re.search(r"late densest in part 4 of 4", drawn)
