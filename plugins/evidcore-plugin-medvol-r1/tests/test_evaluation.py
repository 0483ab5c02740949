"""Boxes 'z y0 y1 x0 x1' on a scan of 12 x 16 x 16 voxels, filled from top to bottom by a segmenter."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from evidcore_plugin_lab.ablation.contrasts import Arms
from evidcore_plugin_lab.ablation.items import row_items
from evidcore_plugin_medvol_r1.evaluation import SegmentationEvaluation
from evidcore_plugin_medvol_r1.masks import HalfMask, masks_of, request
from evidcore_plugin_medvol_r1.overlap import mask_overlap
from evidcore_testing.checks_evaluation import Says
from evidcore_testing.data import save_nifti
from filled_boxes import Boxed, Filled, Fills

from evidcore.api import Answers, Box, Case, EvalOptions, MaskRef, Prompt, VolumeRef
from evidcore.errors import ContractError, DataError
from evidcore.registry.factory import build

SHAPE = (12, 16, 16)
DSC = {"name": "boxed", "metric": "dsc"}


class Tower(Filled):
    """Refuses a box that is a single voxel."""

    def fill(self, part, box):
        if (box.y1 - box.y0) * (box.x1 - box.x0) == 1:
            raise ValueError(f"{box} is too small")
        super().fill(part, box)


class Towers(Fills):
    shape, session_class = SHAPE, Tower


def questions(case):
    """Return a prompt for each mask."""
    result = []
    for name in case.masks:
        kind = "organ" if " " in name else None
        reference = {"masks": [name], "finding": name.split()[-1], "kind": kind}
        result.append(Prompt(id=f"{case.id}:{name}", case=case, task="boxed", parts=(), reference=reference))
    return result


GOLD = {"liver": "6 2 10 2 10", "left kidney": "4 12 14 12 14", "right kidney": "4 12 14 2 4"}


@pytest.fixture
def segmenter(offered):
    def made(session=Tower):
        offered("evid-tower", "[evidcore.segmenter]\ntower = evid_tower:It\n", It=Towers)
        segmenter = build("segmenter", {"use": "tower"}, given={}, where="test")
        segmenter.session_class = session
        return segmenter

    return made


@pytest.fixture
def case_of(tmp_path):
    def made(name, patient=None):
        folder = tmp_path / name
        folder.mkdir()
        masks = {organ: np.zeros(SHAPE, dtype=bool) for organ in GOLD}
        masks["liver"][3:9, 2:10, 2:10] = True  # 6 of 12 slices of the gold box
        masks["left kidney"][:, 12:14, 12:14] = True  # all of them
        masks["right kidney"][4, 12:14, 2:4] = True
        save_nifti(folder / "a.nii", np.full(SHAPE, -1000, dtype=np.int16), (5.0, 2.0, 2.0))
        np.savez(folder / "masks.npz", **masks)
        refs = {organ: MaskRef(path=str(folder / "masks.npz"), key=organ) for organ in GOLD}
        volumes = (VolumeRef(path=str(folder / "a.nii")),)
        return Case(id=name, patient=patient or name, volumes=volumes, masks=refs, notes={"gold": GOLD})

    return made


def evaluated(segmenter, cases, texts):
    prompts = [prompt for case in cases for prompt in questions(case)]
    return scored(segmenter, prompts, texts)


def scored(segmenter, prompts, texts):
    evaluation = SegmentationEvaluation(Path("unused"), segmenter=segmenter)
    policy = Says(lambda prompt: texts[prompt.id])
    said = evaluation.answer(policy, prompts, Boxed(), EvalOptions(max_new_tokens=9))
    [result] = evaluation.score([Answers(prompts, said)], Boxed(), "boxed")
    return result


def by_metric(result):
    return {row.metric: row for row in result.rows()}


ANSWERS = {
    "a:liver": "3 2 10 2 6",  # half the box on another slice
    "a:left kidney": "4 12 14 12 14",
    "a:right kidney": "somewhere",
}


def test_dice_and_iou_are_of_the_whole_volume_worked_by_hand(segmenter, case_of):
    rows = by_metric(evaluated(segmenter(), [case_of("a")], ANSWERS))
    # liver: 8 x 8 on 6 slices; the answer's tower 8 x 4 on 12 slices, 6 of which meet it
    liver = 2 * 32 * 6 / (64 * 6 + 32 * 12)
    assert rows["dsc/liver"].value == pytest.approx(liver)
    # kidneys: the left is right, the right is not answered
    assert rows["dsc/kidney"].value == rows["dsc/organ (kind)"].value == pytest.approx((1 + 0) / 2)
    assert rows["dsc"].value == pytest.approx((liver + 1 + 0) / 3)
    assert [rows[name].questions for name in ("dsc", "dsc/liver", "dsc/kidney")] == [3, 1, 2]
    assert rows["dsc/liver"].note == "too few patients (1 of at least 20)"
    liver_iou = 32 * 6 / (64 * 6 + 32 * 12 - 32 * 6)
    assert rows["iou"].value == pytest.approx((liver_iou + 1 + 0) / 3)
    dsc = rows["dsc"].value
    assert rows["iou_from_dsc"].value == pytest.approx(dsc / (2 - dsc)) != rows["iou"].value
    assert rows["iou_from_dsc"].note.startswith("DSC / (2 - DSC) of the mean DSC")
    # the ceiling is what the same segmenter makes of the gold boxes
    best, left, right = 2 * 64 * 6 / (64 * 6 + 64 * 12), 1.0, 2 * 4 / (4 + 4 * 12)
    assert rows["oracle_dsc"].value == pytest.approx((best + left + right) / 3)
    assert rows["oracle_dsc/liver"].value == pytest.approx(best)
    assert "the ceiling of dsc" in rows["oracle_dsc"].note


def test_unparsable_answers_count_as_0_and_their_share_is_told(segmenter, case_of):
    result = evaluated(segmenter(), [case_of("a")], dict.fromkeys(ANSWERS, "somewhere"))
    rows = by_metric(result)
    for metric in ("dsc", "iou", "key_slice_area", "box_iou", "format_rate"):
        assert rows[metric].value == 0.0, metric
    assert rows["unparsable_rate"].value == 1.0
    assert rows["dsc"].note.startswith("3 unparsable and 0 refused of 3 count as 0")
    assert "key_slice_off_mm" not in {row.metric for row in result.rows() if row.value is not None}
    assert result.answers[0].unparsable == "no box: 'somewhere'"


def test_a_box_that_the_segmenter_refuses_counts_as_0_and_is_told_apart(segmenter, case_of):
    result = evaluated(segmenter(), [case_of("a")], ANSWERS | {"a:liver": "6 2 3 2 3"})
    rows = by_metric(result)
    assert (rows["dsc/liver"].value, rows["unusable_rate"].value) == (0.0, pytest.approx(1 / 3))
    assert rows["dsc"].note.startswith("1 unparsable and 1 refused of 3 count as 0")
    assert result.answers[0].refused == "Box(z=6, y0=2, y1=3, x0=2, x1=3) is too small"
    assert (result.answers[0].unparsable, result.answers[1].refused) == (None, None)


def test_slices_and_boxes_have_figures_of_their_own(segmenter, case_of):
    cases = [case_of("a")]
    rows = by_metric(evaluated(segmenter(), cases, ANSWERS | {"a:liver": "11 2 10 2 6"}))
    assert rows["key_slice_area"].value == pytest.approx((0 + 1 + 0) / 3)  # slice 11 shows no liver
    assert rows["key_slice_off_mm"].value == pytest.approx((5 * 5.0 + 0) / 2)  # of those who name one
    assert rows["key_slice_off_mm"].note.startswith("1 of 3 not measured: the answer names no slice")
    assert rows["box_iou"].value == pytest.approx((0.5 + 1 + 0) / 3)  # in the plane


def test_a_loop_on_one_box_is_counted_and_is_no_better_mask(segmenter, case_of):
    cases, tower = [case_of("a")], segmenter()
    once = by_metric(evaluated(tower, cases, ANSWERS | {"a:liver": GOLD["liver"]}))
    loop = evaluated(tower, cases, ANSWERS | {"a:liver": ", ".join([GOLD["liver"]] * 5)})
    rows = by_metric(loop)
    assert rows["dsc"].value == once["dsc"].value
    assert rows["box_iou"].value == pytest.approx((1 / 5 + 1 + 0) / 3)
    assert once["repeated_boxes"].value == 0.0
    assert rows["repeated_boxes"].value == pytest.approx((4 + 0) / 2)  # of those who name a box
    assert rows["repeated_boxes"].note.startswith("1 of 3 not measured: the answer names no box")
    assert len(loop.answers[0].boxes) == 5


def test_boxes_are_held_against_tight_ones_where_the_gold_answer_draws_wider(segmenter, case_of):
    (liver, *_) = questions(case_of("a"))
    tight = {"slice": 6, "boxes": {"6": [{"z": 6, "y0": 2, "y1": 10, "x0": 2, "x1": 6}]}}
    prompt = dataclasses.replace(liver, reference={**liver.reference, "target": tight})
    rows = by_metric(scored(segmenter(), [prompt], {"a:liver": GOLD["liver"]}))
    assert rows["box_iou"].value == pytest.approx(0.5)
    assert rows["oracle_dsc"].value == pytest.approx(2 * 32 * 6 / (64 * 6 + 32 * 12))


def test_the_right_one_of_two_masks_is_told_where_words_leave_it_open(segmenter, case_of):
    cases = [case_of("a"), case_of("b"), case_of("c")]
    kidneys = ["left kidney", "right kidney"]
    prompts = [prompt for case in cases for prompt in questions(case)]
    open_to = [
        dataclasses.replace(prompt, reference={**prompt.reference, "among": kidneys})
        for prompt in prompts
        if prompt.reference["masks"] == ["left kidney"]
    ]
    texts = dict(zip("abc", (GOLD["left kidney"], GOLD["right kidney"], "somewhere"), strict=True))
    texts, tower = {f"{name}:left kidney": text for name, text in texts.items()}, segmenter()
    rows = by_metric(scored(tower, open_to, texts))
    assert rows["right_mask"].value == rows["right_mask/organ (kind)"].value == pytest.approx(1 / 3)
    assert "right_mask" not in by_metric(evaluated(tower, cases[:1], ANSWERS))  # the words tell


def test_every_line_holds_its_figures_and_rows_can_be_paired(segmenter, case_of):
    cases, tower = [case_of(f"p{number}") for number in range(24)], segmenter()
    gold = {f"{case.id}:{organ}": GOLD[organ] for case in cases for organ in GOLD}
    worse = gold | {f"{case.id}:liver": "6 2 10 2 6" for case in cases[::2]}
    before, after = (evaluated(tower, cases, texts) for texts in (worse, gold))
    old, new = ([json.loads(json.dumps(line)) for line in entry.lines()] for entry in (before, after))
    sides = {name: {0: row_items(lines, DSC)} for name, lines in (("before", old), ("after", new))}
    change = Arms(sides, patients_shared=True).contrast({"after": 1.0, "before": -1.0})
    liver = [2 * 32 * 6 / (64 * 6 + 32 * 12), 2 * 64 * 6 / (64 * 6 + 64 * 12)]
    assert change.value == pytest.approx((liver[1] - liver[0]) / 6)  # every second case, one of three
    assert change.patients == 24
    assert change.low > 0
    names = {name for line in new for name in line["figures"]}
    assert {"dsc", "iou", "oracle_dsc", "box_iou", "dsc/liver"} <= names
    for row in after.rows():
        items = row_items(new, row.to_json())
        if row.metric == "iou_from_dsc":
            assert items == {}  # no sum over answers
        else:
            sums = [item.sums.numbers for item in items.values() if item.sums is not None]
            above, below = map(sum, zip(*sums, strict=True))
            assert above / below == pytest.approx(row.value)


def test_intervals_are_of_patients_and_none_stands_where_they_are_too_few(segmenter, case_of):
    cases = [case_of(f"c{number}", patient=f"p{number // 2}") for number in range(44)]
    texts = {
        f"{case.id}:{organ}": "6 2 10 2 6" if number % 3 and organ == "liver" else GOLD[organ]
        for number, case in enumerate(cases)
        for organ in GOLD
    }
    tower = segmenter()
    rows = by_metric(evaluated(tower, cases, texts))
    assert (rows["dsc"].questions, rows["dsc"].patients) == (132, 22)
    assert rows["dsc"].low < rows["dsc"].value < rows["dsc"].high
    for end in ("low", "high"):
        dsc = getattr(rows["dsc"], end)
        assert getattr(rows["iou_from_dsc"], end) == pytest.approx(dsc / (2 - dsc))
    few = by_metric(evaluated(tower, cases[:6], texts))
    assert few["dsc"].low is few["iou_from_dsc"].low is None
    assert "too few patients (3 of at least 20)" in few["dsc"].note


class Broken(Tower):
    def fill(self, part, box):
        if box.y0 == 2:
            raise RuntimeError("out of memory")


class Flat(Tower):
    def mask(self, prompts, z_window=None):
        return super().mask(prompts, z_window).any(axis=0)


@pytest.mark.parametrize(
    ("session", "said"),
    [
        (Broken, r"segmenter 'tower' from evid-tower 1.0 failed on .*RuntimeError: out of memory"),
        (Flat, r"failed on prompt 'a:liver'.*a mask of bool \(16, 16\) for a volume of \(12, 16, 16\)"),
    ],
)
def test_a_segmenter_that_fails_stops_the_evaluation_and_is_named(segmenter, case_of, session, said):
    with pytest.raises(ContractError, match=said):
        evaluated(segmenter(session), [case_of("a")], ANSWERS)


def test_a_mask_that_the_case_lacks_is_named(segmenter, case_of):
    case = case_of("a")
    (prompt, *_) = questions(dataclasses.replace(case, notes={"gold": {**GOLD, "spleen": GOLD["liver"]}}))
    prompt = dataclasses.replace(prompt, reference={**prompt.reference, "masks": ["spleen"]})
    said = "prompt 'a:liver' is answered by mask 'spleen', which the case lacks. It has: left kidney"
    with pytest.raises(DataError, match=said):
        scored(segmenter(), [prompt], ANSWERS)


def test_the_boxes_of_an_answer_are_followed_by_the_segmenter(segmenter, case_of):
    tower = segmenter()
    evaluation = SegmentationEvaluation(Path("unused"), segmenter=tower)
    (prompt, *_) = questions(case_of("a"))
    evidence, volume = Boxed().parse(prompt, GOLD["liver"]).evidence, prompt.case.volumes[0]
    mask, by = evaluation.follow(prompt, evidence, volume)
    assert (mask.sum(), by) == (8 * 8 * 12, tower)
    assert evaluation.follow(prompt, dataclasses.replace(evidence, boxes=()), volume) is None


class Short(Tower):
    def masks(self, requests):
        return [self.mask(item.prompts) for item in requests][1:]


def test_of_many_requests_only_the_faulty_ones_are_lost_and_too_few_masks_are_none():
    box, small = Box(z=3, y0=1, y1=4, x0=1, x1=4), Box(z=3, y0=1, y1=2, x0=1, x1=2)
    first, lost, last = masks_of(Tower(SHAPE, []), [request([box]), request([small]), request([box])], SHAPE)
    assert isinstance(lost, ValueError)
    assert mask_overlap(first, last) == (1.0, 1.0)
    assert masks_of(Tower(SHAPE, []), [], SHAPE) == []
    assert isinstance(masks_of(Tower(SHAPE, []), [request([small])], SHAPE)[0], ValueError)
    too_few = masks_of(Short(SHAPE, []), [request([box])] * 3, SHAPE)
    assert [type(item) for item in too_few] == [HalfMask] * 3
    assert str(too_few[0]) == "2 masks for 3 requests"
    # equal requests are equal whatever the order of their boxes
    boxes = [Box(z=3, y0=1, y1=4, x0=x, x1=x + 1) for x in range(4)]
    assert request(boxes) == request([*boxes[::-1], boxes[0]])
    assert request(boxes) != request(boxes, (0, 5))
