"""Covers over what is asked and over other places, on small scans with masks of known shapes."""

import dataclasses
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from evidcore_plugin_audit.occlusion import (
    Moved,
    MovedBeside,
    Occluded,
    OccludedElsewhere,
    Replaced,
    elsewhere,
)
from evidcore_plugin_audit.occlusion_map import _pointing
from evidcore_testing.data import save_nifti
from PIL import Image
from scipy import ndimage

from evidcore.api import Case, Crop, Finding, MaskRef, Prompt, Question, TextPart, VisualPart, VolumeRef, read
from evidcore.builtin.choice import Choice
from evidcore.builtin.views import Slices
from evidcore.case import Drawing
from evidcore.data import Geometry, Volume

SHAPE = (10, 60, 100)  # z, y, x; 4, 4 and 4 mm
BODY = (slice(None), slice(8, 52), slice(6, 94))
SPLEEN, SPINE = (slice(3, 7), slice(20, 30), slice(70, 84)), (slice(2, 8), slice(36, 44), slice(46, 54))


def drawn(box):
    mask = np.zeros(SHAPE, dtype=bool)
    mask[box] = True
    return mask


MASKS = {"left_spleen": drawn(SPLEEN), "spine": drawn(SPINE), "absent": np.zeros(SHAPE, dtype=bool)}


@pytest.fixture
def case(tmp_path):
    rng = np.random.default_rng(3)
    hu = np.full(SHAPE, -1000.0)
    hu[BODY] = 0.0
    hu[SPLEEN], hu[SPINE] = 150.0, 600.0
    hu += rng.normal(0, 10, SHAPE)
    # stored from left to right: reading turns it
    path = save_nifti(tmp_path / "scan.nii.gz", hu.astype(np.int16), (4.0, 4.0, 4.0), "RPS")
    np.savez(tmp_path / "masks.npz", **MASKS)
    spleen = "left spleen"
    kinds = {"present": (spleen, "absent"), "larger": ("spine", spleen), "side": ("left", "right")}
    questions = tuple(
        Question(id=kind, text=kind, options=options, answer=0, kind=kind) for kind, options in kinds.items()
    )
    return Case(
        id="c", patient="p", volumes=(VolumeRef(path=str(path)),), questions=questions,
        findings=(Finding(name="left_spleen"), Finding(name="absent", state="absent")),
        masks={name: MaskRef(path=str(tmp_path / "masks.npz"), key=name) for name in MASKS},
    )  # fmt: skip


def asked(case, *masks):
    part = VisualPart(crop=Slices(slices=2).render(case)[1].crop)
    return Prompt(
        id=f"{case.id}:{masks}", case=case, task="t", parts=(TextPart(text="where?"), part),
        reference={"masks": list(masks), "finding": "anything"},
    )  # fmt: skip


def over(condition, case, *masks):
    """Return the voxels that are shown, beside the own ones; None where nothing is."""
    [shown] = condition.show([asked(case, *masks)], seed=0, dataset=None)
    own = read(case.volumes[0])
    if shown is None:
        return own.array, None
    (crop,), (before,) = shown.crops(), asked(case, *masks).crops()
    assert (crop.box_zyx, crop.change) == (before.box_zyx, before.change)
    changed = read(crop.volume)
    assert changed.geometry.fits(own.geometry)
    assert changed.array.dtype == own.array.dtype
    return own.array, changed.array


@pytest.mark.parametrize(("condition", "margin"), [(Occluded(), 0), (Replaced(), 2)])
def test_what_is_asked_is_removed_and_nothing_else_changes(case, condition, margin):
    own, shown = over(condition, case, "left_spleen")
    mask = MASKS["left_spleen"]
    wide = ndimage.binary_dilation(mask, iterations=margin) if margin else mask  # blended over 5 mm
    assert np.array_equal(shown[~wide], own[~wide])
    assert own[mask].mean() == pytest.approx(150, abs=2)
    assert abs(shown[mask].mean()) < 10
    assert 6 < shown[mask].std() < 16  # the noise of the shell: 10 HU


def test_what_replaces_it_has_the_texture_of_the_tissue_around_and_a_cover_has_not(case):
    rng = np.random.default_rng(4)
    noise = np.round(ndimage.gaussian_filter(rng.normal(0, 60, SHAPE), 1.2))
    save_nifti(Path(case.volumes[0].path), noise.astype(np.int16), (4.0, 4.0, 4.0), "RPS")

    def likeness_of_neighbours(condition):
        own, shown = over(condition, case, "left_spleen")
        inside, outside = (array[SPLEEN] - array[SPLEEN].mean() for array in (shown, own))
        return [
            np.corrcoef(item[..., 1:].ravel(), item[..., :-1].ravel())[0, 1] for item in (inside, outside)
        ]

    assert np.subtract(*likeness_of_neighbours(Occluded())) < -0.2
    assert abs(np.subtract(*likeness_of_neighbours(Replaced()))) < 0.1


def test_a_predicted_mask_is_covered_and_its_segmenter_named_but_no_map_is_measured_by_it(case):
    predicted = {"left_spleen": dataclasses.replace(case.masks["left_spleen"], by="sam3")}
    guessed, condition = dataclasses.replace(case, masks={}, predicted=predicted), Occluded()
    _, shown = over(condition, guessed, "left_spleen")
    assert condition.says == "the same patients with what is asked covered (masks by sam3)"
    assert _pointing([1.0], [True], None, asked(guessed, "left_spleen")) is None
    assert np.array_equal(shown, over(condition, case, "left_spleen")[1])
    assert condition.says == Occluded.says


def test_all_masks_of_a_question_are_covered_together(case):
    own, shown = over(Occluded(), case, "left_spleen", "spine")
    assert np.array_equal(shown != own, (shown != own) & (MASKS["left_spleen"] | MASKS["spine"]))
    assert shown.max() < 100


def test_elsewhere_is_the_mirrored_place_across_the_body_s_midline(case):
    own, shown = over(OccludedElsewhere(), case, "left_spleen")
    mirrored = drawn((SPLEEN[0], SPLEEN[1], slice(99 - 83, 99 - 69)))
    assert np.array_equal(shown[~mirrored], own[~mirrored])
    assert (shown[mirrored] != own[mirrored]).mean() > 0.9
    assert abs(shown[mirrored].mean()) < 10


def test_what_lies_on_the_midline_is_covered_in_tissue_that_is_like_what_is_around_it(case):
    own, shown = over(OccludedElsewhere(), case, "spine")
    changed = shown != own
    assert not (changed & MASKS["spine"]).any()
    assert 0.8 * MASKS["spine"].sum() < changed.sum() <= MASKS["spine"].sum()
    assert np.abs(own[changed].mean()) < 40  # neither air nor the bone itself


@pytest.mark.parametrize("condition", [Moved(), MovedBeside()])
def test_what_is_moved_lies_in_its_new_place_alone(case, condition):
    hu = np.random.default_rng(6).normal(-1000, 10, SHAPE)
    hu[BODY] += 1000
    wedge = MASKS["left_spleen"] & (np.arange(100) - 70 > np.arange(60)[:, None] - 20)
    hu[wedge] += 150
    save_nifti(Path(case.volumes[0].path), hu.astype(np.int16), (4.0, 4.0, 4.0), "RPS")
    np.savez(case.masks["left_spleen"].path, **{**MASKS, "left_spleen": wedge})
    own, shown = over(condition, case, "left_spleen")
    there = shown > 75
    if condition.way == "moved":
        assert np.array_equal(there, wedge[:, :, ::-1])
    else:
        by = np.argwhere(there).min(axis=0) - np.argwhere(wedge).min(axis=0)
        assert np.array_equal(there, np.roll(wedge, by, axis=(0, 1, 2)))
        assert by[0] == 0
        assert (np.abs(by[1:]) == [13, 17]).any()  # as wide as it is with what is blended, and a gap
    assert abs(shown[wedge].mean()) < 10
    edges = ndimage.binary_dilation(there | wedge)
    assert np.array_equal(shown[~edges], own[~edges])


def test_only_an_answer_that_is_a_place_is_asked_over_what_was_moved(case):
    def shows(condition, **reference):
        prompt = dataclasses.replace(asked(case), reference=reference)
        return condition.show([prompt], seed=0, dataset=None) != [None]

    place = {"masks": ["left_spleen"]}
    side = {"finding": "left_spleen", "options": ["right spleen", "left spleen"], "letter": "B"}
    assert [shows(item, **place) for item in (Moved(), MovedBeside())] == [True, True]
    assert [shows(item, **side) for item in (Moved(), MovedBeside())] == [True, False]
    assert not shows(
        Moved(), **{**side, "options": ["spine", "left spleen"]}
    )  # it is there, wherever it lies
    assert not shows(Moved(), present=["left_spleen"], **place)  # so would a report say
    assert over(Moved(), case, "spine")[1] is None  # it lies on the midline


def test_a_shape_that_fits_nowhere_else_leaves_the_question_out(case):
    large = dict(MASKS, spine=np.ones(SHAPE, dtype=bool))
    large["spine"][0] = False
    np.savez(case.masks["spine"].path, **large)
    for condition in (OccludedElsewhere(), Replaced(), Moved(), MovedBeside()):
        assert over(condition, case, "spine")[1] is None
    assert over(Occluded(), case, "spine")[1] is not None


def test_a_place_for_a_large_region_is_looked_for_within_its_own_memory():
    region = np.zeros((50, 50, 100), dtype=np.bool_)
    region[10:40, 10:40, 10:90] = True  # 72 000 voxels over the middle: 1.7 MB of indices
    geometry = Geometry(shape_zyx=region.shape, affine=np.eye(4))
    volume = Volume(array=np.zeros(region.shape, np.int16), geometry=geometry, intensity="arbitrary")
    tracemalloc.start()
    assert elsewhere(volume, region, np.random.default_rng(0), "covered elsewhere") is None
    assert tracemalloc.get_traced_memory()[1] < 20e6
    tracemalloc.stop()


def test_nothing_is_covered_where_there_is_nothing(case):
    for condition in (Occluded(), OccludedElsewhere(), Replaced()):
        assert over(condition, case, "absent")[1] is None
        assert over(condition, case, "liver")[1] is None


def test_a_choice_covers_the_asked_finding_or_else_the_right_option(case):
    prompts = Choice(think=False, training_questions="given").prompts(case, Slices(slices=2), 0)
    by_id = {prompt.id.split(":")[-1]: prompt for prompt in prompts}
    shown = dict(zip(by_id, Occluded().show(list(by_id.values()), seed=0, dataset=None), strict=True))
    assert shown["side"] is None  # no mask is called "left"
    for kind, name in (("present", "left_spleen"), ("larger", "spine")):
        changed = read(shown[kind].crops()[0].volume).array != read(case.volumes[0]).array
        assert changed[MASKS[name]].mean() > 0.9
        assert not changed[~MASKS[name]].any()


def test_no_more_questions_are_covered_than_may_be_and_both_conditions_take_the_same(case):
    prompts = [asked(case, name) for name in ("left_spleen", "spine") * 4]
    covered, moved = (
        [item is not None for item in condition(max_questions=3).show(prompts, seed=2, dataset=None)]
        for condition in (Occluded, OccludedElsewhere)
    )
    assert sum(covered) == 3
    assert covered == moved


@pytest.mark.parametrize("mode", ["RGB", "L", "I;16"])
@pytest.mark.parametrize("condition", [Occluded(), OccludedElsewhere(), Replaced()])
def test_a_picture_is_covered_and_keeps_its_colours(tmp_path, mode, condition):
    rng = np.random.default_rng(5)
    base = np.array([90, 30, 160] if mode == "RGB" else [120])
    values = base + rng.integers(-4, 5, (60, 80, base.size))
    values[20:30, 50:64] = 250 - base
    wide = values[..., 0] * 100 if mode == "I;16" else values.squeeze()
    own = Image.fromarray(wide.astype(np.uint16 if mode == "I;16" else np.uint8))
    assert own.mode == mode
    own.save(tmp_path / "photo.png")
    mask = np.zeros((60, 80), np.uint8)
    mask[20:30, 50:64] = 1
    Image.fromarray(mask).save(tmp_path / "mask.png")
    ref = VolumeRef(path=str(tmp_path / "photo.png"), intensity="arbitrary")
    masks = {"spot": MaskRef(path=str(tmp_path / "mask.png"))}
    photo = Case(id="photo", patient=None, volumes=(ref,), masks=masks)
    crop = Crop(volume=ref, box_zyx=(0, 1, 0, 60, 0, 80), drawing=Drawing(kind="picture"))
    parts, about = (VisualPart(crop=crop),), {"masks": ["spot"]}
    prompt = Prompt(id="q", case=photo, task="t", parts=parts, reference=about)
    [shown] = condition.show([prompt], seed=0, dataset=None)
    [changed] = shown.crops()
    assert changed.drawing == crop.drawing
    assert read(changed.volume).shape_zyx == (1, 60, 80)
    before, after = (np.asarray(Image.open(item.volume.path)).astype(int) for item in (crop, changed))
    after = after if mode != "L" else after[..., 0]
    moved = (before != after).reshape(60, 80, -1).any(axis=-1)
    if not isinstance(condition, OccludedElsewhere):
        assert moved[20:30, 50:64].mean() > 0.9
        margin = 5 if isinstance(condition, Replaced) else 0
        assert not moved[ndimage.distance_transform_edt(mask == 0) > margin].any()
        scale = 100 if mode == "I;16" else 1
        inside = after[20:30, 50:64].reshape(140, -1)
        np.testing.assert_allclose(inside.mean(axis=0), base * scale, atol=2 * scale)
    else:
        assert not moved[mask == 1].any()
        assert 50 < moved.sum() <= 140
