"""The audit of segmentations, on policies that look, that remember, and that guess."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from evidcore_plugin_medvol_r1.blind_boxes import USUAL, WORDED, best_answers
from evidcore_plugin_medvol_r1.evaluation import SegmentationEvaluation
from evidcore_plugin_medvol_r1.scan_facts import stated
from evidcore_testing.checks_evaluation import Repeats
from evidcore_testing.data import save_nifti
from filled_boxes import Boxed, Fills, Nothing

from evidcore.api import EvalOptions
from evidcore.case import Answer, Box, Case, Crop, Evidence, MaskRef, Prompt, TextPart, VisualPart, VolumeRef
from evidcore.registry import factory
from evidcore.registry.factory import build

SHAPE = (6, 12, 20)


class Blocks(Fills):
    shape = SHAPE


class Looker(Repeats):
    """Boxes what the shown volume shows; over air it says nothing that can be read."""

    def __init__(self, cases):
        self.shown = {case.volumes[0].path: case.notes["gold"]["block"] for case in cases}

    def generate(self, prompts, *, max_new_tokens, temperature=0.0):
        crops = [prompt.crops()[0] for prompt in prompts]
        return ["?" if crop.blank else self.shown[crop.volume.path] for crop in crops]


@pytest.fixture
def segmenter(offered):
    offered("evid-block", "[evidcore.segmenter]\nblock = evid_block:It\n", It=Blocks)
    return build("segmenter", {"use": "block"}, given={}, where="test")


@pytest.fixture
def cases(tmp_path):
    """24 patients, half with the block on the left, half on the right; words tell the height alone."""
    result = []
    for number in range(24):
        side, is_high = number % 2, number // 2 % 2
        box = (3, 1 + 6 * is_high, 5 + 6 * is_high, 2 + 10 * side, 8 + 10 * side)
        mask = np.zeros(SHAPE, dtype=bool)
        mask[:, box[1] : box[2], box[3] : box[4]] = True
        path = save_nifti(tmp_path / f"{number}.nii", np.zeros(SHAPE, np.int16), (1.0, 1.0, 1.0))
        np.savez(tmp_path / f"{number}.npz", block=mask)
        masks = {"block": MaskRef(path=str(tmp_path / f"{number}.npz"), key="block")}
        notes = {"gold": {"block": " ".join(map(str, box))}, "words": "high" if is_high else "low"}
        volumes = (VolumeRef(path=str(path)),)
        result.append(Case(id=f"c{number}", patient=f"p{number}", volumes=volumes, masks=masks, notes=notes))
    return result


def asked(cases):
    result, reference = [], {"masks": ["block"], "finding": "block"}
    for case in cases:
        parts = (VisualPart(crop=Crop(volume=case.volumes[0])), TextPart(text=case.notes["words"]))
        result.append(Prompt(id=case.id, case=case, task="boxed", parts=parts, reference=reference))
    return result


def blind_answers(prompts, training, task, rules=(USUAL, WORDED)):
    return {rule.name: best_answers(prompts, training, task, [rule], stated)[1] for rule in rules}


def audited(policy, cases, segmenter, *, repeats):
    folder = Path(cases[0].volumes[0].path).parent / "cache"
    evaluation = SegmentationEvaluation(folder, segmenter=segmenter)
    asking = EvalOptions(max_new_tokens=8)
    conditions = [{"use": "blank"}, {"use": "other-patient", "repeats": repeats}]
    audit = factory.build("audit", {"use": "policy", "conditions": conditions}, given={}, where="test")
    return audit(policy, asked(cases), Boxed(), evaluation, lambda: asked(cases), asking, "boxed")


def test_a_policy_that_looks_has_a_margin_and_nothing_over_air_or_in_its_words(cases, segmenter):
    result = audited(Looker(cases), cases, segmenter, repeats=3)
    rows = {(row.name, row.metric): row for row in result.rows()}
    assert rows["own volumes", "dsc"].value == 1.0
    assert rows["blank volumes", "dsc"].value == 0.0
    assert rows["blank volumes", "unparsable_rate"].value == 1.0
    other = rows["another patient's volumes", "dsc"].value
    # of two sides and two heights, another patient shares both by chance
    assert 0.1 < other < 0.45
    assert result.other.above.value == pytest.approx(1 - other)
    assert result.other.above.low > 0
    assert "The volume is used" in result.verdict()
    assert "points of DSC" in result.verdict()
    assert result.blind.rule == "the usual place of what is asked in these words"
    # the median box lies between left and right: 10 of 20 columns wide spans, 4 rows that are right
    assert rows["boxed", "blind_dsc"].value == pytest.approx(np.mean(result.blind.values))
    assert 0.0 < rows["boxed", "blind_dsc"].value < 0.5
    assert len(segmenter.opened) == len(cases)  # each volume once, and no mask is made twice
    assert all(len(made) == len(set(made)) for made in segmenter.asked)


def test_a_blind_answer_is_the_median_gold_box_on_the_grid_of_the_case(cases):
    some = cases[::2]  # all on one side
    answers = blind_answers(asked(some), asked(some), Boxed())
    worded = answers["the usual place of what is asked in these words"]
    for prompt, answer in zip(asked(some), worded, strict=True):
        assert answer.evidence == Boxed().parse(prompt, Boxed().gold(prompt)[0]).evidence
    (box,) = answers["the usual place"][0].evidence.boxes
    assert (box.x0, box.x1) == (2, 8)


class TwoBoxed(Boxed):
    """Its gold answers name a box of 20 voxels and a speck, in either order."""

    def __init__(self, places):
        self.places = places

    def parse(self, prompt, completion):
        result = super().parse(prompt, completion).evidence
        [large] = result.boxes
        both = [large, Box(z=large.z, y0=0, y1=1, x0=0, x1=19)]  # wider, but smaller
        boxes = tuple(both[place] for place in self.places)
        return Answer(text="", evidence=Evidence(slice=large.z, boxes=boxes))


@pytest.mark.parametrize("places", [(0, 1), (1, 0)])
def test_of_several_gold_boxes_the_largest_is_where_a_thing_lies(cases, places):
    prompts = asked(cases)
    several, single = (blind_answers(prompts, prompts, task) for task in (TwoBoxed(places), Boxed()))
    for rule, answers in single.items():
        assert [item.evidence for item in several[rule]] == [item.evidence for item in answers]


def test_a_figure_that_cannot_be_measured_counts_0_in_the_margin(cases, segmenter, tmp_path):
    np.savez(tmp_path / "empty.npz", block=np.zeros(SHAPE, dtype=bool))
    empty = MaskRef(path=str(tmp_path / "empty.npz"), key="block")
    some = [
        dataclasses.replace(case, masks={"block": empty} if number < 6 else case.masks)
        for number, case in enumerate(cases)
    ]
    segmenter.session_class = Nothing
    result = audited(Looker(some), some, segmenter, repeats=1)
    [own] = result.results["own"]
    assert own.values("dsc") == (0.0,) * 24
    assert [name for name in own.measured.texts[0].unscored if "dsc" in name] == ["dsc", "oracle_dsc"]
    assert result.other.above.value == 0.0


def test_the_query_alone_is_what_words_are_not_the_numbers_of_the_slices(cases):
    def numbered(number, prompt):
        parts = (TextPart(text=f"slice {number}:"), *prompt.parts)
        reference = {**prompt.reference, "query": prompt.case.notes["words"]}
        return dataclasses.replace(prompt, parts=parts, reference=reference)

    prompts = [numbered(number, prompt) for number, prompt in enumerate(asked(cases))]
    answers = blind_answers(prompts, prompts[::-1], Boxed())
    plain = blind_answers(asked(cases), asked(cases), Boxed())
    for rule, some in answers.items():
        assert [item.evidence for item in some] == [item.evidence for item in plain[rule]]


def test_words_that_training_never_used_get_the_usual_place(cases):
    known, others = asked(cases[:2]), asked(cases[2:4])
    answers = blind_answers(others, known, Boxed())
    usual, worded = answers.values()
    assert [item.evidence for item in usual] == [item.evidence for item in worded]
    with pytest.raises(ValueError, match="there are none"):
        blind_answers(others, [], Boxed())
