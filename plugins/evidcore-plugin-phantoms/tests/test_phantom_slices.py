"""Slices whose lesions differ in what only full resolution shows, and in nothing else."""

import collections
import dataclasses
import itertools
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from evidcore_plugin_phantoms import slices as phantom
from evidcore_plugin_phantoms.abdomen.scene import label_of
from scipy import ndimage, stats
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from evidcore.api import read, read_mask
from evidcore.builtin.choice import Choice
from evidcore.builtin.views import Slices
from evidcore.errors import RecipeError
from evidcore.registry import factory

POPULATION = phantom.PhantomSlices(Path())
REDUCED = 8
LEFT_HU = phantom.NOISE_HU / REDUCED  # of the noise, in an average over 8 x 8 pixels


@pytest.fixture(scope="module")
def cases(slices):
    return list(slices().cases("test"))


def image_of(ref):
    return read(ref).array[0].astype(float)


def lesion_of(case):
    """Return the lesion's mask, read as everyone reads it, on one slice."""
    (finding,) = case.present()
    return read_mask(case.masks[finding], like=read(case.volumes[0]))[0]


def averaged(plane):
    rows, columns = (size // REDUCED for size in plane.shape)
    return plane.reshape(rows, REDUCED, columns, REDUCED).mean(axis=(1, 3))


def test_a_volume_is_one_slice_stored_twice(cases):
    for case in cases:
        item, two = read(case.volumes[0]).array
        assert np.array_equal(item, two)


def test_a_case_has_one_lesion_inside_an_organ_and_far_from_its_border(cases):
    for case in cases:
        like, lesion = read(case.volumes[0]), lesion_of(case)
        (finding,) = (each for each in case.findings if each.state == "present")
        organ = f"{finding.side} {finding.location}" if finding.side else finding.location
        assert organ in phantom.HOSTS
        border_px = ndimage.distance_transform_edt(read_mask(case.masks[organ], like=like)[0])
        assert border_px[lesion].min() > phantom.BORDER_PX - 1
        _, count = ndimage.label(lesion)
        assert count == 1
        assert 2 * 4 <= finding.size_mm / 0.8 <= 2 * 5 + 2
        assert np.ptp(np.nonzero(lesion), axis=1).tolist() <= [11, 11]


def test_the_masks_of_organs_are_named_as_in_the_abdomen_and_the_lesion_belongs_to_its_organ(cases, abdomen):
    organs = next(iter(abdomen().cases("test"))).masks.keys()
    for case in cases:
        assert set(case.masks) - set(case.present()) <= {*organs, "lesion"}
        assert case.masks["lesion"] == case.masks[case.present()[0]]
        assert set(case.present()) <= set(case.masks)


@pytest.mark.parametrize("pattern", phantom.PATTERNS)
def test_every_pattern_has_the_sum_of_the_others_wherever_it_lies(pattern):
    rng = np.random.default_rng(3)
    for _ in range(40):
        radius, offset, angle = rng.uniform(4, 5), rng.uniform(-0.5, 0.5, 2), rng.uniform(0, 7)
        drawn = phantom.shares(pattern, radius, tuple(offset), angle)
        assert drawn.min() >= 0
        assert abs(drawn.sum() - 1) < 1e-12
        assert drawn[ndimage.binary_dilation(phantom.disc(radius, tuple(offset)))].sum() == pytest.approx(1)


def test_every_pattern_reaches_as_far_out_as_a_disc():
    """Second moments along every axis, by numerical integration, against r² / 4 of a disc."""
    at = np.arange(phantom.SIDE_PX) - phantom.SIDE_PX // 2
    for pattern, angle in itertools.product(phantom.PATTERNS, (0.0, 0.4, 0.8, 1.2)):
        drawn = phantom.shares(pattern, 5.0, (0.0, 0.0), angle)
        along_y, along_x = drawn.sum(axis=1) @ at**2, drawn.sum(axis=0) @ at**2
        assert [along_y, along_x] == pytest.approx([25 / 4 + 1 / 12] * 2, rel=0.04)


def test_another_pattern_leaves_the_sum_and_the_overview_as_they_were(slices, cases):
    dataset, seen = slices(), collections.Counter()
    for case in cases[:12]:
        (finding,) = case.present()
        (ref,) = dataset.without(case, finding)
        own, other = image_of(case.volumes[0]), image_of(ref)
        differs = own != other
        assert differs[lesion_of(case)].mean() > 0.5
        assert not differs[~ndimage.binary_dilation(lesion_of(case), iterations=4)].any()
        assert abs((own - other).sum()) < 15  # of some 2,500 HU; voxels are whole numbers
        assert np.abs(averaged(own) - averaged(other)).max() < 2.5 * LEFT_HU
        seen[finding] += 1
    assert len(seen) == 4


def test_a_twin_shows_one_of_the_other_patterns():
    """Without noise and blur, the pattern that the twin has is that of its own drawing."""
    shown = collections.Counter()
    for number in range(60):
        pattern = POPULATION.pattern("test", number)
        twin = POPULATION.draw("test", number, without=phantom.FINDING_OF[pattern])
        shown[pattern, twin.known.pattern] += 1
        if number < 5:
            same = POPULATION.draw("test", number, without="no finding of this one")
            assert np.array_equal(same.hu, POPULATION.draw("test", number).hu)
    assert set(shown) == set(itertools.permutations(phantom.PATTERNS, 2))


def test_patterns_letters_and_places_tell_nothing_of_each_other():
    numbers = range(4000)
    patterns = [POPULATION.pattern("train", number) for number in numbers]
    assert set(collections.Counter(patterns).values()) == {1000}
    letters = [POPULATION.place_in_group("train", number, phantom.LETTER) for number in numbers]
    assert set(collections.Counter(letters).values()) == {1000}
    table = collections.Counter(zip(patterns, letters, strict=True))
    cells = [table[key] for key in itertools.product(phantom.PATTERNS, range(4))]
    assert stats.chisquare(cells).pvalue > 0.01


@pytest.mark.slow
def test_every_organ_has_every_pattern_alike():
    table = collections.Counter()
    for number in range(400):
        known = POPULATION.draw("train", number).known
        table[" ".join(filter(None, (known.side, known.organ))), known.pattern] += 1
    counts = [[table[organ, pattern] for pattern in phantom.PATTERNS] for organ in phantom.HOSTS]
    assert np.min(np.sum(counts, axis=1)) > 30
    assert stats.chi2_contingency(counts).pvalue > 0.05


def test_the_question_offers_every_pattern_and_no_text_tells_which_is_right(slices, cases):
    texts, answers = set(), collections.Counter()
    for case in slices(test_cases=48).cases("test"):
        (question,) = case.questions
        (finding,) = case.present()
        right = question.options[question.answer]
        assert sorted(question.options) == sorted(phantom.PATTERNS)
        assert (phantom.FINDING_OF[right], phantom.FINDING_OF[right]) == (finding, question.kind)
        assert question.true_options == (question.answer,)
        assert (case.report, case.queries, case.notes) == (None, (), {})
        texts.add(question.text)
        answers[question.answer, right] += 1
        for pattern, name in phantom.FINDING_OF.items():
            assert pattern not in case.patient
            assert name not in case.id + str(case.volumes)
    assert texts == {"Which pattern does the lesion have?"}
    assert [sum(answers[place, right] for right in phantom.PATTERNS) for place in range(4)] == [12] * 4
    assert len({case.questions[0].options for case in cases}) > 10


@pytest.mark.parametrize("think", [True, False])
def test_without_annotations_training_shows_asks_and_answers_the_same(slices, think):
    """So a training that goes by questions alone is the same bit for bit."""
    task, view = Choice(think=think, training_questions="given"), Slices(slices=1)
    known, bare = (list(slices(annotated=each).cases("train")) for each in (True, False))
    for item, other in zip(known, bare, strict=True):
        assert item.findings
        assert (other.findings, other.masks) == ((), {})
        assert dataclasses.replace(item, findings=(), masks={}) == other
        assert [slices().without(other, finding) for finding in slices().findings] == [None] * 4  # no twin
        for seed in (0, 1):
            told, blind = (
                [(each.id, each.parts, dict(each.reference), task.gold(each)) for each in prompts]
                for prompts in (task.prompts(item, view, seed), task.prompts(other, view, seed))
            )
            assert told == blind
    for split in ("validation", "test"):
        assert list(slices(annotated=True).cases(split)) == list(slices(annotated=False).cases(split))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"radius_px": [4, 6]}, r"4 to 5 pixels, got \[4.0, 6.0\]\. The pattern of a larger lesion can be"),
        ({"radius_px": [3, 5]}, r"from 4 to 5 pixels, got \[3.0, 5.0\]"),
        ({"radius_px": [5, 4]}, r"do not fall, .*got \[5.0, 4.0\]"),
        *(({"cut_px": px}, "cut_px") for px in ([16, 64], [64, 32], [64, 513], [64], [64, 64, 64])),
    ],
)
def test_a_lesion_that_would_leak_and_a_cut_that_is_no_square_are_refused(tmp_path, options, says):
    given = {"recipe_folder": tmp_path, "cache_folder": tmp_path}
    with pytest.raises(RecipeError, match=says):
        factory.build("dataset", {"use": "phantom-slices", **options}, given=given, where="dataset.slices")


def test_what_is_cut_out_is_a_part_of_the_slice_with_its_lesion_and_has_any_scale(slices, cases):
    sides = []
    for whole, part in zip(cases, slices(cut_px=(48, 256)).cases("test"), strict=True):
        assert (part.questions, part.findings) == (whole.questions, whole.findings)
        shown, full = read(part.volumes[0]).array[0], read(whole.volumes[0]).array[0]
        assert shown.shape[0] == shown.shape[1]
        sides.append(len(shown))
        wanted, lesion = lesion_of(whole), lesion_of(part)
        assert lesion.sum() == wanted.sum()
        y, x = (wanted.nonzero()[axis].min() - lesion.nonzero()[axis].min() for axis in (0, 1))
        assert np.array_equal(full[y : y + len(shown), x : x + len(shown)], shown)
        assert set(part.masks) >= {part.present()[0]}
    assert 48 <= min(sides) < 80 < 160 < max(sides) <= 256


@pytest.mark.slow
def test_an_abdomen_without_room_for_a_lesion_is_told_and_two_hundred_have_room_for_the_largest():
    _, organs = phantom.healthy_slice(np.random.default_rng(0))
    with pytest.raises(ValueError, match=r"no organ has a pixel 20[78]\.\d pixels inside its border"):
        phantom.draw_lesion(np.random.default_rng(0), organs, (200.0, 200.0))
    for number in range(200):
        rng = POPULATION.stream("validation", number, phantom.PLACE)
        phantom.draw_lesion(rng, phantom.healthy_slice(rng)[1], (5.0, 5.0))


def texture(image):
    """Return what does not depend on place and turn: sorted values, and the mean and spread by distance."""
    low = ndimage.gaussian_filter(image, 2)[14:-14, 14:-14]
    y, x = (at + 14 for at in np.unravel_index(low.argmin(), low.shape))
    part = image[y - 7 : y + 8, x - 7 : x + 8]
    fine = ndimage.gaussian_filter(part, 0.7)
    distance = np.hypot(*(np.indices(part.shape) - 7))
    shells = [fine[(distance >= at) & (distance < at + 1)] for at in range(7)]
    spectrum = np.abs(np.fft.rfft2(part * (distance < 7)))[:8].reshape(-1)
    return np.concatenate([
        np.sort(fine[distance < 6]),
        [each.mean() for each in shells],
        [each.std() for each in shells],
        np.sort(spectrum)[::-1][:24],
    ])


def right_of(model, features, patterns, learnt):
    model.fit(features[:learnt], patterns[:learnt])
    return (model.predict(features[learnt:]) == patterns[learnt:]).mean()


@pytest.mark.slow
def test_on_whole_slices_too_the_pattern_is_told_at_full_resolution_alone():
    """Lesions in their organs, at the known place; a network and support vectors try the averages."""
    fine, coarse, patterns = [], [], []
    for number in range(3200):
        drawn = POPULATION.draw("train", number)
        y, x = (round(at.mean()) for at in np.nonzero(drawn.arrays["lesion"][0]))
        slice_hu = drawn.hu[0].astype(float)
        part = slice_hu[y - 20 : y + 20, x - 20 : x + 20]
        fine.append(texture(part - np.median(part[14:26, 14:26])))
        row, column = y // REDUCED, x // REDUCED
        around = averaged(slice_hu)[row - 2 : row + 3, column - 2 : column + 3]
        coarse.append((around - np.median(around)).reshape(-1))
        patterns.append(phantom.PATTERNS.index(drawn.known.pattern))
    patterns = np.array(patterns)
    assert right_of(make_pipeline(StandardScaler(), SVC(C=3)), np.array(fine), patterns, 2400) >= 0.85
    for model in (SVC(C=3), MLPClassifier((64, 32), alpha=0.01, max_iter=60, random_state=0, tol=0.0)):
        with pytest.warns(ConvergenceWarning) if isinstance(model, MLPClassifier) else nullcontext():
            assert right_of(make_pipeline(StandardScaler(), model), np.array(coarse), patterns, 2400) <= 0.32


@pytest.mark.slow
def test_the_overview_shows_where_the_lesion_lies():
    """Within the organs as they are known, the darkest 2 x 2 averages lie on the lesion in most slices."""
    result = 0
    for number in range(120):
        drawn = POPULATION.draw("validation", number)
        overview = averaged(drawn.hu[0].astype(float))
        score = np.full((63, 63), np.inf)
        for organ in phantom.HOSTS:
            whole = averaged((drawn.arrays["organs"][0] == label_of(organ)).astype(float)) == 1
            if whole.any():
                off = np.where(whole, overview - np.median(overview[whole]), 0.0)
                inside = np.min([whole[y : 63 + y, x : 63 + x] for y in (0, 1) for x in (0, 1)], axis=0)
                pairs = np.mean([off[y : 63 + y, x : 63 + x] for y in (0, 1) for x in (0, 1)], axis=0)
                score = np.minimum(score, np.where(inside, pairs, np.inf))
        row, column = np.unravel_index(score.argmin(), score.shape)
        y, x = (at.mean() for at in np.nonzero(drawn.arrays["lesion"][0]))
        result += max(abs((row + 1) * REDUCED - y), abs((column + 1) * REDUCED - x)) < 10
    assert result >= 114
