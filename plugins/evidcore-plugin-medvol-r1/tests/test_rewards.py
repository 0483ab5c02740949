"""Hand-worked: the liver has 10 z voxels on slices z = 4 to 15, the kidneys lie on 3 to 6, the left to 8.

A slice is 40 x 50 voxels, so 0..1000 has 25 a row and 20 a column.
"""

import dataclasses
import tomllib
from pathlib import Path

import pytest
from evidcore_plugin_medvol_r1.consistency import VolumeConsistency
from evidcore_plugin_medvol_r1.rewards import BoxOverlap, EvidenceFormat
from evidcore_testing.checks_reward import check_reward
from filled_boxes import LEFT_BOX, RIGHT_BOX, liver_box

from evidcore.api import Unscored

TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
GOOD = '<think>Here.</think><answer>{"slice": 5, "bbox_2d_list": [[1, 2, 3, 4]]}</answer>'


def value_of(reward, rollout):
    return reward([rollout], {})[0].value


@pytest.mark.parametrize(("text", "graded", "binary"), TABLE["formats"])
def test_format_is_the_mean_of_four_shares_or_all_or_nothing(asked, text, graded, binary):
    _, answered = asked()
    assert value_of(EvidenceFormat(), answered(text=text)) == pytest.approx(graded)
    assert value_of(EvidenceFormat(levels="binary"), answered(text=text)) == binary


def test_format_says_which_share_is_missing(asked):
    _, answered = asked()
    (score,) = EvidenceFormat()([answered(text=GOOD.replace("[1, 2, 3, 4]", "[1, 2, 3, 4], [5]"))], {})
    assert score.parts == {"tags": 1.0, "think": 1.0, "json": 1.0, "boxes": 0.5}
    assert score.reason == "the box [5] must be four numbers x0, y0, x1, y1"


def test_without_thinking_three_shares_are_left(asked):
    _, answered = asked(think=False)
    assert value_of(EvidenceFormat(), answered(text=GOOD.replace("<think>Here.</think>", ""))) == 1.0
    assert value_of(EvidenceFormat(), answered(text=GOOD)) == pytest.approx(2 / 3)


def test_boxes_are_matched_one_to_one_whatever_their_order(asked):
    _, answered = asked()
    reward = BoxOverlap()
    assert value_of(reward, answered(6, LEFT_BOX, RIGHT_BOX)) == 1.0
    assert value_of(reward, answered(6, RIGHT_BOX, LEFT_BOX)) == 1.0
    assert value_of(reward, answered(6, LEFT_BOX)) == 0.5  # one of two
    assert value_of(reward, answered(6, LEFT_BOX, RIGHT_BOX, (0, 0, 40, 50))) == pytest.approx(2 / 3)
    assert value_of(reward, answered(6, LEFT_BOX, LEFT_BOX)) == 0.5  # the second matches nothing
    for text in ("kidneys", '<think>x</think><answer>{"slice": 6, "bbox_2d_list": [[9, 9, 9, 9]]}</answer>'):
        (score,) = reward([answered(text=text)], {})
        assert score.value == 0.0
        assert score.reason


@pytest.mark.parametrize(("times", "shared"), [(1, 1.0), (2, 1 / 2), (5, 1 / 5)])
@pytest.mark.parametrize("at", ["gold", "predicted"])
def test_a_policy_that_loops_on_one_right_box_is_not_paid_in_full(asked, times, shared, at):
    _, liver = asked("gland")
    looped = liver(11, *[liver_box(11)] * times)
    (score,) = BoxOverlap(at=at)([looped], {})
    assert score.value == pytest.approx(shared)
    assert score.parts == {"boxes": times, "right_boxes": 1.0}
    assert value_of(EvidenceFormat(levels="binary"), looped) == float(times == 1)
    assert value_of(EvidenceFormat(), looped) == 1.0  # as released
    x0, *others = liver_box(11)
    nearly = liver(11, *[(x0 + number % 2, *others) for number in range(times)])  # they round to one box
    assert value_of(BoxOverlap(at=at), nearly) == pytest.approx(shared)


def test_format_refuses_a_bare_object_where_an_array_was_asked_for(asked):
    _, answered = asked(form="array")
    array = GOOD.replace("{", "[{").replace("}", "}]")
    assert value_of(EvidenceFormat(levels="binary"), answered(text=array)) == 1.0
    assert value_of(EvidenceFormat(levels="binary"), answered(text=GOOD)) == 0.0
    assert value_of(EvidenceFormat(), answered(text=GOOD)) == 1.0  # as released


def test_at_the_gold_slice_a_slice_that_shows_nothing_is_paid_in_full_and_at_the_predicted_one_not(asked):
    """The released code pays for boxes that lie right in the plane, on a slice without the target."""
    _, answered = asked()
    nowhere = answered(18, LEFT_BOX, RIGHT_BOX)
    assert value_of(BoxOverlap(at="gold"), nowhere) == 1.0
    (score,) = BoxOverlap(at="predicted")([nowhere], {})
    assert (score.value, score.reason) == (0.0, "slice 18 does not show the target, so it has no box there")
    # at the predicted slice a right box on another slice is right
    _, answered = asked("gland")  # its gold slice is 11: 11 rows; slice 15 has 15
    there = answered(15, liver_box(15))
    assert value_of(BoxOverlap(at="predicted"), there) == 1.0
    assert value_of(BoxOverlap(at="gold"), there) == pytest.approx(11 / 15)


OF_A_REPORT = {"shown": [2, 6], "target": {"slice": 6, "areas": {"6": 12}}, "targets": {}}  # cites a slice


@pytest.mark.parametrize("reference", [{"letter": "A"}, OF_A_REPORT])
@pytest.mark.parametrize("reward", [EvidenceFormat(), BoxOverlap(), VolumeConsistency()])
def test_other_tasks_are_not_applicable(asked, reward, reference):
    _, answered = asked()
    item = answered(6, LEFT_BOX)
    other = dataclasses.replace(item, prompt=dataclasses.replace(item.prompt, reference=reference))
    reason = "prompt 'c7:filters' asks for no segmentation, or nobody knows the answer"
    assert reward([other], {}) == [Unscored(kind="not-applicable", reason=reason)]


STRICT = EvidenceFormat(levels="binary")


@pytest.mark.parametrize("reward", [EvidenceFormat(), STRICT, BoxOverlap(), BoxOverlap(at="predicted")])
def test_they_keep_the_contract_of_a_reward(asked, reward):
    _, liver = asked("gland")
    _, kidneys = asked("filters")
    gold = liver_box(11)
    good = [liver(15, gold), liver(14, gold), kidneys(6, LEFT_BOX, group=1), kidneys(5, RIGHT_BOX, group=1)]
    bad = [
        liver(text="<answer>[]</answer>"), liver(text="12"), kidneys(text="<think>x</think>", group=1),
        kidneys(text="", group=1),
    ]  # fmt: skip
    check_reward(reward, good, bad)
