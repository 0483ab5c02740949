"""Condition `blurred`: an overview stays, and a closer look shows nothing more."""

import numpy as np
import PIL.Image
import pytest
from evidcore_plugin_medvr.blurred import Blurred, squares
from evidcore_plugin_views.views import Image
from evidcore_testing.checks_evaluation import check_condition

from evidcore.api import Case, Question, VolumeRef, read
from evidcore.builtin.choice import Choice
from evidcore.builtin.views import Slices


def test_each_square_has_its_mean_also_at_the_edges():
    voxels = np.arange(30, dtype=np.int16).reshape(1, 5, 6)
    result = squares(voxels, 4)
    assert result[0, :4, :4].tolist() == [[round(voxels[0, :4, :4].mean())] * 4] * 4
    assert result[0, 4, 4:].tolist() == [round(voxels[0, 4, 4:].mean())] * 2
    assert (result.dtype, result.shape) == (np.int16, (1, 5, 6))
    assert squares(voxels.astype(np.float32), 4).mean() == pytest.approx(voxels.mean())


def test_an_overview_stays_and_the_pattern_goes(cases):
    prompts = [prompt for case in cases[:4] for prompt in Choice().prompts(case, Slices(slices=1), 0)]
    check_condition(Blurred(), prompts)
    for prompt, shown in zip(prompts, Blurred().show(prompts, seed=0, dataset=None), strict=True):
        own, blurred = (read(item.crops()[0].volume).array.astype(float) for item in (prompt, shown))
        reduced = [array.reshape(2, 64, 8, 64, 8).mean(axis=(2, 4)) for array in (own, blurred)]
        np.testing.assert_allclose(*reduced, atol=0.5)
        assert np.ptp(blurred[:, :8, :8]) == 0
        assert shown.crops()[0].box_zyx == prompt.crops()[0].box_zyx


@pytest.mark.parametrize("shape", [(20, 30), (20, 30, 3)])
def test_photographs_keep_their_size_and_colours(tmp_path, shape):
    pixels = np.random.default_rng(0).integers(0, 255, shape, dtype=np.uint8)
    PIL.Image.fromarray(pixels).save(tmp_path / "photo.png")
    ref = VolumeRef(path=str(tmp_path / "photo.png"), intensity="arbitrary")
    question = Question(id="q", text="?", options=("a", "b"), answer=0)
    case = Case(id="case", patient=None, volumes=(ref,), questions=(question,))
    prompts = Choice(training_questions="given").prompts(case, Image(), 0)
    [shown] = Blurred(times=4).show(prompts, seed=0, dataset=None)
    [blurred] = shown.crops()
    result = np.asarray(PIL.Image.open(blurred.volume.path).convert("RGB"))
    pixels = pixels if pixels.ndim == 3 else np.repeat(pixels[..., None], 3, axis=-1)
    assert result.shape == pixels.shape
    assert np.ptp(result[:4, :4], axis=(0, 1)).max() == 0
    np.testing.assert_allclose(result[:4, :4].mean(axis=(0, 1)), pixels[:4, :4].mean(axis=(0, 1)), atol=0.5)
