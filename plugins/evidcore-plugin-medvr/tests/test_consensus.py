"""Reward `zoom-consensus`, against rasters worked by hand."""

import types

import numpy as np
import pytest
from evidcore_plugin_medvr.consensus import ZoomConsensus
from evidcore_testing import check_reward, volume_case

from evidcore.api import Answer, Case, Crop, Prompt, Rollout, Score, TextPart, Unscored, VisualPart
from evidcore.case import Action, Turn
from evidcore.errors import RecipeError
from evidcore.registry import factory
from evidcore.train.grpo import Grpo

WON, LOST = Score(value=1.0), Score(value=0.0)


@pytest.fixture
def prompt(tmp_path):
    case = volume_case(tmp_path, 1)
    parts = (VisualPart(crop=Crop(volume=case.volumes[0])), TextPart(text="What?"))
    return Prompt(id="p", case=Case(id="c", patient=None, volumes=case.volumes), task="t", parts=parts)


def rollout(prompt, *boxes, group=0):
    """Return an answer that looked at boxes (slice, y0, y1, x0, x1)."""
    actions, [volume] = (Action(tool="zoom", arguments={}),), prompt.case.volumes
    crops = [Crop(volume=volume, box_zyx=(z, z + 1, *box)) for z, *box in boxes]
    turns = [Turn(text="", actions=actions, reply=(VisualPart(crop=crop),)) for crop in crops]
    return Rollout(prompt=prompt, group=group, text="", answer=Answer(text=""), turns=tuple(turns))


def paid(rollouts, success, **options):
    return ZoomConsensus(success="right", **options)(rollouts, {"right": success})


LEFT, RIGHT, UPPER = (3, 0, 8, 0, 8), (3, 0, 8, 8, 16), (3, 0, 4, 0, 8)


def test_who_looks_where_most_of_the_successful_looked_is_paid_1(prompt):
    rollouts = [rollout(prompt, box) for box in (LEFT, LEFT, RIGHT, LEFT)] + [rollout(prompt)]
    result = paid(rollouts, [WON, WON, WON, LOST, WON])
    # of the three that won and looked two looked left: the consensus is LEFT
    assert [item.value for item in result] == [1.0, 1.0, 0.5, 0.0, 0.0]
    assert [item.parts.get("iou") for item in result] == [1.0, 1.0, 0.0, None, None]
    assert [item.reason for item in result[3:]] == ["right pays nothing", "did not look"]


def test_it_keeps_the_contract_of_a_reward(prompt):
    good, bad = ([rollout(prompt, box)] * 2 for box in (LEFT, RIGHT))
    check_reward(
        ZoomConsensus(success="right"), good, bad,
        earlier=lambda some: {"right": [WON if item.crops[0].box_zyx[4] == 0 else LOST for item in some]},
    )  # fmt: skip


OTHER_SLICE = (4, *LEFT[1:])
BLIND = [(LEFT,), (LEFT,), (), ()]


@pytest.mark.parametrize(
    ("looks", "options", "values", "ious"),
    [
        # UPPER is half of LEFT: all three looked at UPPER, two of three at the rest of LEFT, one at RIGHT;
        # 64 of 64, 64 of 128, 32 of 64, and 0.5 is not above eta
        ([(LEFT,), (LEFT, RIGHT), (UPPER,)], {}, [1.0, 0.5, 0.5], [1.0, 0.5, 0.5]),
        ([(LEFT,), (LEFT, RIGHT), (UPPER,)], {"eta": 0.4}, [1.0, 1.0, 1.0], [1.0, 0.5, 0.5]),
        ([(LEFT,), (RIGHT,)], {}, [0.5, 0.5], [0.0, 0.0]),  # half is no majority
        ([(LEFT,), (LEFT,), (OTHER_SLICE,)], {}, [1.0, 1.0, 0.5], [1.0, 1.0, 0.0]),
        # by the paper's letter who never looked counts and is paid half: two of four are no majority
        (BLIND, {}, [1.0, 1.0, 0.0, 0.0], [1.0, 1.0, None, None]),
        (BLIND, {"count_blind": True}, [0.5] * 4, [0.0] * 4),
    ],
    ids=["union", "eta", "half", "slices", "who looked", "the paper's letter"],
)
def test_the_iou_is_that_with_the_strict_majority_slice_by_slice(prompt, looks, options, values, ious):
    result = paid([rollout(prompt, *boxes) for boxes in looks], [WON] * len(looks), **options)
    assert [item.value for item in result] == values
    assert [item.parts.get("iou") for item in result] == ious


def test_one_success_agrees_with_itself_unless_more_are_asked_for(prompt):
    rollouts = [rollout(prompt, LEFT), rollout(prompt, LEFT)]
    assert [item.value for item in paid(rollouts, [WON, LOST])] == [1.0, 0.0]
    (alone, _) = paid(rollouts, [WON, LOST], fewest=2)
    assert (alone.value, alone.reason) == (0.5, "1 successful answers that looked, 2 are needed")
    assert [item.value for item in paid(rollouts, [LOST, LOST])] == [0.0, 0.0]


def test_what_success_does_not_score_is_not_scored(prompt):
    none = Unscored(kind="failed", reason="the judge is away")
    result = paid([rollout(prompt, LEFT), rollout(prompt, LEFT)], [none, WON])
    assert result[0] is none
    assert result[1].value == 1.0


def test_small_boxes_beside_each_other_in_a_large_slice_do_not_agree(prompt):
    looks = [
        (3, 500, 531, 500, 531),
        (3, 510, 541, 510, 541),
    ]  # of 1,024: IoU 0.30, 0.46 with their consensus
    result = paid([rollout(prompt, box) for box in looks], [WON, WON])
    assert [item.value for item in result] == [0.5, 0.5]


def test_every_payment_is_that_of_the_rule_counted_voxel_by_voxel(prompt):
    rng = np.random.default_rng(7)
    for _ in range(10_000):
        count, eta = int(rng.integers(1, 7)), float(rng.choice([0.3, 0.5]))
        looks, planes, right = [], np.zeros((count, 2, 14, 14), bool), rng.random(count) < 0.8
        for number in range(count):
            low = rng.integers(0, 10, (int(rng.integers(0, 4)), 2))
            high = low + rng.integers(1, 5, low.shape)
            slices = rng.integers(0, 2, len(low)).tolist()
            for z, (y0, x0), (y1, x1) in zip(slices, low, high, strict=True):
                planes[number, z, y0:y1, x0:x1] = True
            looks.append([
                (z, *map(int, (y0, y1, x0, x1)))
                for z, (y0, x0), (y1, x1) in zip(slices, low, high, strict=True)
            ])
        counted = right & planes.any((1, 2, 3))
        agreed = planes[counted].sum(0) > counted.sum() / 2
        either = (planes | agreed).sum((1, 2, 3))
        iou = (planes & agreed).sum((1, 2, 3)) / np.maximum(either, 1)
        expected = np.where(counted, np.where(iou > eta, 1.0, 0.5), 0.0)
        verdicts = [WON if it else LOST for it in right]
        result = paid([rollout(prompt, *boxes) for boxes in looks], verdicts, eta=eta)
        assert [item.value for item in result] == expected.tolist()


def test_the_reward_that_tells_success_must_stand_above():
    def component(kind, table, key, **given):
        options = {name: value for name, value in table.items() if name not in {"weight", "gate", "name"}}
        return factory.build(kind, options, given=given, where=key)

    recipe = types.SimpleNamespace(services={})
    context = types.SimpleNamespace(component=component, where="stage.grpo", recipe=recipe)
    keys = {"weight": 1.0, "gate": "", "name": ""}
    accuracy = {"use": "choice-accuracy", **keys, "name": "accuracy"}
    consensus = {"use": "zoom-consensus", "success": "accuracy", **keys}
    train = {"train": ("bridge",), "steps": 1, "learning_rate": 1e-3, "data": ()}
    right = Grpo(reward=(accuracy, consensus), **train).rewards(context)
    assert [item.name for item in right] == ["accuracy", "zoom-consensus"]
    with pytest.raises(RecipeError, match=r"reward\[0\]: needs a reward 'accuracy' above it\. Above: none\."):
        Grpo(reward=(consensus, accuracy), **train).rewards(context)
