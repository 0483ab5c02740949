"""Hand-worked: the target has 10 z voxels on slices z = 4 to 15."""

import pytest
from evidcore_plugin_medvol_r1.key_slice import KeySlice
from evidcore_testing.checks_reward import check_reward

from evidcore.case import Answer, Box, Case, Evidence, Prompt, Rollout, Unscored

AREAS = {str(z): 10 * z for z in range(4, 16)}
CASE = Case(id="c7", patient="p7", volumes=())


def answered(z=None, *, slices=None, boxes=(), malformed=None, shown=tuple(range(20)), group=0, **reference):
    """Return a rollout that names a slice, or one a finding."""
    told = reference or {"target": {"areas": AREAS}}
    prompt = Prompt(id="c7:gland", case=CASE, task="t", parts=(), reference={"shown": list(shown), **told})
    evidence = None if z is None and slices is None else Evidence(slice=z, slices=slices or {}, boxes=boxes)
    text = f"{z} {slices}"
    answer = Answer(text=text, evidence=evidence, malformed=malformed)
    return Rollout(prompt=prompt, group=group, text=text, answer=answer)


def value_of(reward, rollout):
    return reward([rollout], {})[0].value


@pytest.mark.parametrize(
    ("z", "local", "globally"),
    [
        (15, 1.0, 1.0),  # the largest slice
        (12, 12 / 15, 12 / 15),  # 15 lies within 5
        (9, 9 / 14, 9 / 15),
        (4, 4 / 9, 4 / 15),  # the target's tip: its neighbours are small, so it is paid well
        (3, 0.0, 0.0),  # one slice off
        (19, 0.0, 0.0),
    ],
)
def test_key_slice_is_area_over_the_largest_nearby_or_anywhere(z, local, globally):
    assert value_of(KeySlice(), answered(z)) == pytest.approx(local)
    assert value_of(KeySlice(over="global"), answered(z)) == pytest.approx(globally)


def test_over_the_slices_shown_1_can_always_be_reached():
    few = (2, 7, 12, 17)
    assert value_of(KeySlice(over="shown"), answered(12, shown=few)) == 1.0
    assert value_of(KeySlice(over="shown"), answered(7, shown=few)) == pytest.approx(7 / 12)
    assert value_of(KeySlice(over="global"), answered(12, shown=few)) == pytest.approx(12 / 15)


@pytest.mark.parametrize("reach", [0, 1, 3, 30])
def test_the_local_window_is_counted_in_slices_to_either_side(reach):
    for z in range(4, 16):
        largest = max(area for at, area in AREAS.items() if abs(int(at) - z) <= reach)
        assert value_of(KeySlice(reach=reach), answered(z)) == pytest.approx(10 * z / largest)


def test_it_says_what_it_saw():
    seen, *nothing = KeySlice()([answered(12), answered(malformed="no tags"), answered()], {})
    assert seen.reason == "slice 12 shows 120 voxels of at most 150 within 5 slices"
    assert seen.parts == {"area_voxels": 120.0, "largest_voxels": 150.0}
    said = [(score.value, score.reason) for score in nothing]
    assert said == [(0.0, "no tags"), (0.0, "no slice is named")]


BOX = Box(z=12, y0=1, y1=3, x0=1, x1=3)


def test_a_slice_without_a_box_is_paid_for_unless_boxes_are_needed():
    reward = KeySlice(needs="boxes")
    assert value_of(KeySlice(), answered(12)) == pytest.approx(12 / 15)
    assert value_of(reward, answered(12, boxes=(BOX,))) == pytest.approx(12 / 15)
    for said, reason in (
        (answered(12), "no box is named"),
        (answered(12, malformed="'bbox_2d_list' is []"), "'bbox_2d_list' is []"),
        (answered(boxes=(BOX,)), "no slice is named"),
        (answered(), "no slice is named"),
    ):
        (score,) = reward([said], {})
        assert (score.value, score.reason) == (0.0, reason)
    check_reward(reward, [answered(15, boxes=(BOX,)), answered(14, boxes=(BOX,))], [answered(15), answered()])
    said = answered(slices={"cyst": 4}, targets={"cyst": {"areas": {"4": 16}}})
    assert value_of(reward, said) == 1.0  # slices of findings need no box


def test_slices_of_findings_are_averaged_over_those_that_are_there():
    targets = {"cyst": {"areas": {"3": 8, "4": 16}}, "stone": {"areas": {"9": 5}}}
    reward = KeySlice(over="global")

    def value(**slices):
        return value_of(reward, answered(slices=slices, targets=targets))

    assert value(cyst=4, stone=9) == 1.0
    assert value(cyst=3, stone=9) == pytest.approx(0.75)
    assert value(cyst=4) == 0.5
    assert value(cyst=9, stone=4) == 0.0
    assert value(cyst=4, stone=9, metastasis=1) == 1.0  # invented: the report is at fault
    (score,) = reward([answered(slices={"cyst": 3}, targets=targets)], {})
    assert score.parts == {"cyst": 0.5, "stone": 0.0}
    assert score.reason == "cyst: slice 3 shows 8 voxels of at most 16 on any slice; stone: no slice is named"


@pytest.mark.parametrize("reference", [{"letter": "A"}, {"target": None}, {"targets": {}}])
def test_where_no_slice_is_right_nothing_is_scored(reference):
    reason = "prompt 'c7:gland' asks for no slice, or nobody knows the right one"
    assert KeySlice()([answered(3, **reference)], {}) == [Unscored(kind="not-applicable", reason=reason)]


@pytest.mark.parametrize("reward", [KeySlice(), KeySlice(over="global"), KeySlice(over="shown")])
def test_it_keeps_the_contract_of_a_reward(reward):
    check_reward(reward, [answered(15), answered(14)], [answered(1), answered()])
