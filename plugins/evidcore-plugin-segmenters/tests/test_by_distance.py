from xml.etree import ElementTree

import pytest
from evidcore_plugin_segmenters.audit.page import audit_page, by_distance


def drawn(lines, top=None):
    return by_distance("Dice", lines, ["0", "1", "2-5"], "score", top)


def line(values, low=None, high=None):
    nothing = [None] * len(values)
    ends = zip(values, low or nothing, high or nothing, strict=True)
    return [None if point[0] is None else point for point in ends]


def test_a_line_has_a_dot_for_each_known_value_in_proportion():
    tree = ElementTree.fromstring(drawn({"a": line([1.0, 0.5, 0.0])}, top=1.0))
    heights = [float(dot.get("cy")) for dot in tree.iter("circle")]
    assert heights[1] - heights[0] == pytest.approx(heights[2] - heights[1], abs=0.11)
    assert heights == sorted(heights)
    places = [float(dot.get("cx")) for dot in tree.iter("circle")]
    assert places[1] - places[0] == pytest.approx(places[2] - places[1], abs=0.11)


def test_what_was_not_measured_is_left_out_and_intervals_are_bars():
    known = line([1.0, None, 0.5], [0.9, None, None], [1.0, None, None])
    text = drawn({"a": known, "<b>": line([None] * 3)})
    tree = ElementTree.fromstring(text)
    assert len(list(tree.iter("circle"))) == 2
    bars = [path for path in tree.iter("path") if path.get("class") == "raw s0"]
    assert len(bars) == 1
    assert "&lt;b&gt;" in text
    assert "Dice: a from 1.000 at 0 to 0.500 at 2-5" in text


def test_the_page_holds_every_segmenter_and_says_phantom():
    figures = {"low": 0.7, "high": 0.9, "objects": 3, "patients": 21, "note": "", "distance_slices": None}
    rows = [
        {"segmenter": name, "prompt": "oracle box", "metric": metric, "value": 0.8, **figures}
        for name in ("one", "two")
        for metric in ("dice", "splits")
    ]
    rows.append({**rows[0], "distance_slices": "0"})
    rows.append({**rows[0], "metric": "dice_difference", "segmenter": "two minus one", "note": "3 seeds"})
    result = {
        "segmenters": [{"name": "one"}, {"name": "two"}],
        "distances": ["0", "1"],
        "datasets": {
            "chest": {
                "split": "test", "is_phantom": True, "objects": 3, "patients": 21, "patients_known": True,
                "without_masks": 1, "empty_masks": 0, "rows": rows,
            }
        },
    }  # fmt: skip
    text = audit_page(result)
    assert "Phantom data." in text
    assert "two minus one: oracle box" in text
    assert "3 objects" not in text
    assert "3 of 21 patients" in text
    assert text.count("<circle") >= 3
    assert "3 seeds." in text
