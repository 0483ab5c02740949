"""The figure of where a stage's time went, against sums by hand."""

import re

import pytest
from evidcore_plugin_pages.durations import stage_time, time_parts


def line(step, **seconds):
    return {"step": step, "time_s": 9.0 * step, "loss": 1.0, **seconds}


STEPS = [
    line(1, **{"generate_s": 2.0, "reward_s/format": 0.5, "update_s": 1.0, "other_s": 0.5, "step_s": 4.0}),
    line(2, **{"generate_s": 3.0, "reward_s/format": 0.5, "update_s": 1.5, "other_s": 1.0, "step_s": 6.0}),
]


def test_parts_are_summed_over_steps_the_largest_first():
    assert time_parts(STEPS) == [("generate", 5.0), ("update", 2.5), ("other", 1.5), ("reward format", 1.0)]


def test_a_steps_rest_is_what_its_parts_do_not_explain():
    lines = [line(1, generate_s=2.0, a_s=0.5, step_s=4.0), line(2, generate_s=3.0, a_s=0.5, step_s=3.5)]
    assert time_parts(lines) == [("generate", 5.0), ("update and the rest of the step", 1.5), ("a", 1.0)]


def test_a_log_without_times_has_no_figure():
    assert stage_time([line(1), line(2)]) is None


def columns(drawn):
    """Return the heights of each colour, column by column from the left."""
    result = {}
    part = r'<rect x="([\d.]+)" y="[\d.]+" width="[\d.]+" height="([\d.]+)" class="(s\d)"'
    for x, height, tone in re.findall(part, drawn):
        result.setdefault(float(x), {}).setdefault(tone, 0.0)
        result[float(x)][tone] += float(height)
    return [result[x] for x in sorted(result)]


def test_columns_are_as_high_as_their_seconds():
    first, second = columns(stage_time(STEPS))
    room = 102  # of the highest column
    shares = {"s0": 3 / 6, "s1": 1.5 / 6, "s2": 1 / 6, "s3": 0.5 / 6}
    assert second == pytest.approx({tone: room * share for tone, share in shares.items()}, abs=0.06)
    assert sum(first.values()) == pytest.approx(room * 4 / 6, abs=0.3)


def test_many_steps_are_drawn_as_means_of_some():
    lines = [line(step, generate_s=float(step), step_s=float(step)) for step in range(1, 241)]
    drawn = columns(stage_time(lines))
    assert len(drawn) == 60
    expected = sum(range(1, 5)) / sum(range(237, 241))
    assert drawn[0]["s0"] / drawn[-1]["s0"] == pytest.approx(expected, abs=1e-3)


def test_the_key_gives_seconds_and_shares_and_small_parts_share_a_colour():
    parts = {f"part{index}_s": 8.0 - index for index in range(8)}
    drawn = stage_time([line(1, **parts, step_s=36.0), line(2, **parts, step_s=36.0)])
    assert re.findall(r'class="key (s\d)"', drawn) == ["s0", "s1", "s2", "s3", "s4", "s5", "s5", "s5"]
    assert "16.0 s" in drawn
    assert "22 %" in drawn
    assert "the sums are over 2 logged steps" in drawn
