"""Hand-worked with a segmenter that fills the box on every slice of the window, and so is known by heart."""

import dataclasses

import numpy as np
import pytest
from evidcore_plugin_medvol_r1.consistency import VolumeConsistency
from evidcore_testing.checks_reward import check_reward
from filled_boxes import LEFT_BOX, RIGHT_BOX, Filled, Fills, liver_box

from evidcore.api import MaskRef, Unscored, VolumeRef

SHAPE = Fills.shape


class Prism(Filled):
    """Draws nothing for a box in the first row."""

    def fill(self, part, box):
        if box.y0 > 0:
            super().fill(part, box)


class Prisms(Fills):
    session_class = Prism


def judged(reward, *rollouts):
    return reward(list(rollouts), {})


def test_it_is_the_dice_within_delta_slices_of_the_named_one(asked):
    _, answered = asked()
    reward = VolumeConsistency(segmenter=Prisms(), delta=1)
    (score,) = judged(reward, answered(5, LEFT_BOX, RIGHT_BOX))  # slices 4 to 6: 3 x 180 voxels, all right
    assert (score.value, score.reason) == (1.0, "Dice 1.00 on slices 4 to 6")
    (score,) = judged(reward, answered(5, LEFT_BOX))  # 300 of 540
    assert score.value == pytest.approx(2 * 300 / (300 + 540))
    assert score.parts["iou"] == pytest.approx(300 / 540)


@pytest.mark.parametrize("delta", [0, 2, 5, 10, 30])
def test_delta_bounds_what_is_looked_at_and_the_volume_bounds_delta(asked, delta):
    _, answered = asked("gland")
    (score,) = judged(VolumeConsistency(segmenter=Prisms(), delta=delta), answered(12, liver_box(12)))
    slices = [z for z in range(SHAPE[0]) if abs(z - 12) <= delta]
    drawn = 120 * len(slices)
    target = sum(10 * z for z in slices if 4 <= z < 16)
    both = sum(min(10 * z, 120) for z in slices if 4 <= z < 16)
    assert score.value == pytest.approx(2 * both / (drawn + target))


def test_around_the_gold_slice_the_window_does_not_move_with_the_answer(asked):
    """The kidneys' gold slice is 6; boxes that lie outside its window are used all the same."""
    _, answered = asked()
    segmenter = Prisms()
    reward = VolumeConsistency(segmenter=segmenter, delta=0, around="gold")
    (score,) = judged(reward, answered(12, LEFT_BOX, RIGHT_BOX))
    assert (score.value, score.reason) == (1.0, "Dice 1.00 on slices 6 to 6")
    [((_, window),)] = segmenter.asked
    assert window == (6, 13)


def test_a_box_far_off_out_of_which_nothing_grows_earns_nothing_though_the_released_code_pays_1(asked):
    _, answered = asked()
    far = answered(18, (0, 0, 100, 100))  # slices 17 to 19 show no kidney, and no mask grows
    for empty, value in (("nothing", 0.0), ("full", 1.0)):
        (score,) = judged(VolumeConsistency(segmenter=Prisms(), delta=1, empty=empty), far)
        assert (score.value, score.reason) == (value, "neither mask nor target shows on slices 17 to 19")
    (score,) = judged(VolumeConsistency(segmenter=Prisms(), delta=1, empty="full"), answered(18, LEFT_BOX))
    assert score.value == 0.0  # a mask where no target is


def test_an_answer_without_slice_or_box_earns_nothing_and_asks_for_nothing(asked):
    _, answered = asked()
    segmenter = Prisms()
    scores = judged(VolumeConsistency(segmenter=segmenter), answered(5), answered(text="kidneys"))
    assert [score.value for score in scores] == [0.0, 0.0]
    assert [score.reason for score in scores] == [
        "'bbox_2d_list' is [], expected a list of boxes", "no tags, expected <think></think><answer></answer>"
    ]  # fmt: skip
    assert segmenter.opened == []


def test_all_rollouts_of_a_volume_are_asked_for_together_and_equal_boxes_once(asked):
    _, kidneys = asked("filters")
    _, liver = asked("gland")
    segmenter = Prisms()
    scores = judged(
        VolumeConsistency(segmenter=segmenter),
        kidneys(5, LEFT_BOX, RIGHT_BOX), kidneys(5, RIGHT_BOX, LEFT_BOX),
        kidneys(5, LEFT_BOX, RIGHT_BOX, LEFT_BOX),
        kidneys(6, LEFT_BOX), liver(12, LEFT_BOX, group=1),
    )  # fmt: skip
    assert [len(asked) for asked in segmenter.asked] == [3]
    assert scores[0] == scores[1] == scores[2]
    assert scores[3].value > 0 == scores[4].value


def failing(mask):
    raise RuntimeError("out of memory")


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (failing, "RuntimeError: out of memory"),
        (lambda mask: mask[:12], "HalfMask: a mask of bool (12, 40, 50) for a volume of (20, 40, 50)"),
        (np.float32, "HalfMask: a mask of float32 (20, 40, 50) for a volume of (20, 40, 50)"),
    ],
)
def test_a_failed_or_half_propagation_is_unscored_and_the_others_are_judged(asked, spoil, reason):
    class Spoilt(Prism):
        def mask(self, prompts, z_window=None):
            mask = super().mask(prompts, z_window)
            return spoil(mask) if prompts[0].box.z == 5 else mask

    _, answered = asked()
    segmenter = Prisms()
    segmenter.session_class = Spoilt
    lost, kept = judged(VolumeConsistency(segmenter=segmenter), answered(5, LEFT_BOX), answered(6, LEFT_BOX))
    assert lost == Unscored(kind="failed", reason=lost.reason)
    assert lost.reason.removesuffix(" (z, y, x)") == f"the segmenter failed: {reason}"
    assert kept.value > 0


class Closed(Prisms):
    def session(self, volume):
        raise OSError("no such device")


def test_a_volume_or_target_that_cannot_be_opened_is_unscored_with_its_reason(asked, case):
    _, answered = asked()
    item = answered(5, LEFT_BOX)
    (verdict,) = judged(VolumeConsistency(segmenter=Closed()), item)
    reason = f"{case.volumes[0].path} cannot be segmented: OSError: no such device"
    assert verdict == Unscored(kind="failed", reason=reason)
    masks = {**case.masks, "kidneys": MaskRef(path="/gone.npz", key="kidneys")}
    for gone, reason in (
        ({"volumes": (VolumeRef(path="/gone.nii"),)}, "/gone.nii cannot be segmented: DataError: /gone.nii"),
        ({"masks": masks}, "the target cannot be read: /gone.npz"),
    ):
        prompt = dataclasses.replace(item.prompt, case=dataclasses.replace(case, **gone))
        (verdict,) = judged(VolumeConsistency(segmenter=Prisms()), dataclasses.replace(item, prompt=prompt))
        assert verdict.kind == "failed"
        assert reason in verdict.reason
    assert "(case 'c7', mask 'kidneys')" in verdict.reason


def test_without_a_segmenter_nothing_is_judged(asked):
    _, answered = asked()
    assert judged(VolumeConsistency(), answered(5, LEFT_BOX)) == [
        Unscored(kind="failed", reason="no segmenter: name a service, segmenter = 'segmenter'")
    ]


@pytest.mark.parametrize("options", [{}, {"around": "gold"}, {"delta": 2, "empty": "full"}])
def test_it_keeps_the_contract_of_a_reward(asked, options):
    _, liver = asked("gland")
    _, kidneys = asked("filters")
    good = [
        liver(12, liver_box(12)), liver(14, liver_box(12)), kidneys(6, LEFT_BOX, group=1),
        kidneys(5, RIGHT_BOX, LEFT_BOX, group=1),
    ]  # fmt: skip
    bad = [liver(12, LEFT_BOX), liver(14), kidneys(6, (0, 25, 40, 50), group=1), kidneys(text="", group=1)]
    check_reward(VolumeConsistency(segmenter=Prisms(), **options), good, bad)
