"""Segmenter `slice-propagator`: what its network sees, how it is trained, what it finds."""

import json

import numpy as np
import pytest
import torch
from evidcore_plugin_segmenters.propagation import Frame, Track, carry, shown
from evidcore_plugin_segmenters.propagator_fit import PropagatorFit
from evidcore_plugin_segmenters.regions import tight_box
from evidcore_plugin_segmenters.slice_propagator import SlicePropagator
from evidcore_testing import check_fit, check_segmenter, prompts_from
from evidcore_testing.data import save_nifti
from safetensors.torch import load_file, save_file

from evidcore.api import Box, Case, DataError, MaskRef, VolumeRef, read, read_mask
from evidcore.contracts import BoxPrompt, FitData, MaskPrompt, MaskRequest
from evidcore.contracts.model import Fittable
from evidcore.data.masks import dice

SHAPE = (12, 40, 40)
SMALL = {"size": 32, "width": 8, "windows": ((-200.0, 200.0),)}


def ball_case(folder, number):
    """A bright ball in noise, somewhere, with its mask."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(number)
    centre, radii = rng.uniform((5, 15, 15), (7, 25, 25)), rng.uniform((3, 6, 6), (4, 9, 9))
    z, y, x = np.ogrid[tuple(slice(count) for count in SHAPE)]
    places = zip((z, y, x), centre, radii, strict=True)
    inside = sum(((place - middle) / radius) ** 2 for place, middle, radius in places) <= 1
    hu = np.where(inside, 80.0, -60.0) + rng.normal(0, 20, SHAPE)
    path = save_nifti(folder / f"{number}.nii", hu.round().astype(np.int16), (4.0, 2.0, 2.0))
    np.savez_compressed(folder / f"{number}.npz", ball=inside)
    return Case(
        id=f"ball-{number}",
        patient=f"patient-{number}",
        volumes=(VolumeRef(path=str(path)),),
        masks={"ball": MaskRef(path=str(folder / f"{number}.npz"), key="ball")},
    )


@pytest.fixture(scope="module")
def balls(tmp_path_factory):
    folder = tmp_path_factory.mktemp("balls")
    return [ball_case(folder, number) for number in range(8)]


@pytest.fixture(scope="module")
def fitted(balls, tmp_path_factory):
    segmenter, folder, logged = SlicePropagator(**SMALL), tmp_path_factory.mktemp("fitted"), []
    options = PropagatorFit(steps=110, objects_per_step=4)
    segmenter.fit(FitData(balls[:6], balls[6:], folder, 3, logged.append), options=options)
    return segmenter, folder, logged


def truth_of(case):
    return read_mask(case.masks["ball"], like=read(case.volumes[0]))


@pytest.mark.slow
def test_it_learns_to_find_an_unseen_object_and_where_it_ends(balls, fitted):
    segmenter, folder, logged = fitted
    figures = json.loads((folder / "fit.json").read_text())
    assert figures["cases"] == figures["objects"] == 6
    assert figures["validation_objects"] == 2
    assert logged[-1]["loss"] < 0.5 * logged[0]["loss"]
    result = []
    for case in balls[6:]:
        truth = truth_of(case)
        z = int(truth.sum(axis=(1, 2)).argmax())
        mask = segmenter.session(case.volumes[0]).mask([BoxPrompt(box=tight_box(truth[z], z))])
        result.append(dice(mask, truth))
    assert np.mean(result) > 0.8
    assert np.mean(result) == pytest.approx(figures["validation_dice"])


@pytest.mark.slow
def test_it_keeps_the_contract_of_a_segmenter(balls, fitted):
    segmenter, _, _ = fitted
    truth = truth_of(balls[7])
    check_segmenter(segmenter, balls[7].volumes[0], prompts_from(truth), truth=truth, least_dice=0.6)


def test_it_keeps_the_contract_of_what_can_be_fitted(balls, tmp_path):
    assert isinstance(SlicePropagator(), Fittable)
    options = {"steps": 2, "objects_per_step": 2}
    check_fit(lambda: SlicePropagator(**SMALL), balls[:2], balls[2:3], tmp_path, options=options)


@pytest.mark.slow
def test_equal_prompts_of_a_call_run_once_and_all_prompts_side_by_side(balls, fitted):
    segmenter, _, _ = fitted
    truth = truth_of(balls[6])
    session, rows = segmenter.session(balls[6].volumes[0]), []
    run = session._run
    session._run = lambda given: rows.append(len(given)) or run(given)
    box, point, mask = prompts_from(truth)
    session.masks([MaskRequest(prompts=(box,))] * 8 + [MaskRequest(prompts=(point, mask))])
    assert rows[0] == 2  # box and point; the mask's slice is known
    assert rows[1] == 6  # three objects, two ways
    assert max(rows) == 6


def test_without_weights_it_says_what_to_do(balls, tmp_path):
    ref = balls[0].volumes[0]
    with pytest.raises(DataError, match=r"has no weights. Put a fit stage .* pretrained = "):
        SlicePropagator().session(ref)
    with pytest.raises(DataError, match=r"gone/weights.safetensors: there is no such file"):
        SlicePropagator(tmp_path, pretrained="gone").session(ref)


@pytest.mark.slow
def test_weights_of_another_network_are_named(balls, fitted, tmp_path):
    _, folder, _ = fitted
    weights = load_file(folder / "weights.safetensors")
    name = sorted(weights)[0]
    weights["foreign"] = weights.pop(name)
    save_file(weights, tmp_path / "weights.safetensors")
    with pytest.raises(DataError, match=rf"(?s)foreign \(.*, the network has none\).*|{name} \(none"):
        SlicePropagator(**SMALL).load(tmp_path)
    with pytest.raises(DataError, match=r"holds other weights than this network: .* and \d+ more"):
        SlicePropagator(**{**SMALL, "width": 16}).load(folder)


def test_a_set_without_masks_and_masks_of_another_name_are_refused(balls, tmp_path):
    bare = Case(id="bare", patient=None, volumes=balls[0].volumes)
    with pytest.raises(DataError, match=r"masks are needed, and none of the 1 training cases has any"):
        SlicePropagator(**SMALL).fit(FitData([bare], [], tmp_path, 0, print))
    liver = PropagatorFit(masks=("liver",))
    with pytest.raises(DataError, match=r"masks called liver are needed, and none of the 2"):
        SlicePropagator(**SMALL).fit(FitData(balls[:2], [], tmp_path, 0, print), options=liver)
    masks = {"ball": MaskRef(path="gone.npz", key="ball")}
    missing = Case(id="lost", patient=None, volumes=balls[0].volumes, masks=masks)
    with pytest.raises(DataError, match=r"gone.npz.*lost"):
        SlicePropagator(**SMALL).fit(FitData([missing], [], tmp_path, 0, print))


def test_options_that_fit_no_network_are_refused():
    with pytest.raises(ValueError, match="size must be a multiple of 16, got 40"):
        SlicePropagator(size=40)
    with pytest.raises(ValueError, match="at least one"):
        SlicePropagator(windows=())


def test_a_square_comes_back_where_it_was_cut():
    box = Box(z=0, y0=10, y1=20, x0=30, x1=38)  # the square reaches beyond the right edge
    frame = Frame.around(box, (1.0, 1.0), 64)
    assert (frame.y1 - frame.y0, frame.x1 - frame.x0) == (20, 20)
    mask = np.zeros((40, 40), dtype=np.bool_)
    mask[10:20, 30:38] = True
    back = frame.back(frame.cut_mask(mask), mask.shape) >= 0.5
    assert np.array_equal(back, mask)
    ramp = np.tile(np.arange(40.0), (40, 1)).astype(np.float32)
    cut = frame.cut(ramp)
    assert cut[:, 0].numpy() == pytest.approx(frame.x0, abs=0.5)
    assert cut[:, -1].numpy() == pytest.approx(39.0)  # the edge goes on


def test_a_square_is_as_wide_in_mm_along_both_axes():
    frame = Frame.around(Box(z=0, y0=0, y1=10, x0=0, x1=10), (3.0, 1.5), 32)
    assert (frame.y1 - frame.y0, frame.x1 - frame.x0) == (20, 40)  # 60 mm


def test_windows_of_arbitrary_values_are_percentiles(balls):
    ref = VolumeRef(path=balls[0].volumes[0].path, intensity="arbitrary")
    frame = Frame.around(Box(z=5, y0=0, y1=20, x0=0, x1=20), (2.0, 2.0), 32)
    image = shown(read(ref), 5, frame, ((0.0, 1.0), (5.0, 9.0)))
    assert torch.equal(image[0], image[1])
    assert image.min() >= -1
    assert image.max() <= 1
    assert image.std() > 0.1


def test_where_nothing_is_likely_the_likeliest_voxel_of_the_box_stands(balls):
    volume = read(balls[0].volumes[0])
    box = Box(z=3, y0=4, y1=12, x0=6, x1=14)
    track = Track(volume, Frame.around(box, (2.0, 2.0), 32), box, None, (0, 12), ((-200.0, 200.0),))
    ramp = torch.linspace(0.0, 0.4, 32).expand(1, 1, 32, 32)
    carry([track], lambda given: ramp.expand(len(given), 1, 32, 32))
    result = np.zeros(SHAPE, dtype=np.bool_)
    track.put_into(result, 0, 12)
    assert result.any(axis=(1, 2)).tolist() == [z == 3 for z in range(12)]
    assert np.argwhere(result)[:, 2].tolist() == [13] * 8  # the column of the box where the ramp is highest


@pytest.mark.slow
def test_the_mask_of_the_prompted_slice_is_taken_as_it_is(balls, fitted):
    segmenter, _, _ = fitted
    mask = np.zeros(SHAPE[1:], dtype=np.bool_)
    mask[3:5, 3:9] = True
    result = segmenter.session(balls[6].volumes[0]).mask([MaskPrompt(z=4, mask=mask)], (4, 5))
    assert np.array_equal(result[4], mask)
