from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from evidcore.case import Crop, VolumeRef
from evidcore.contracts import EncoderInput
from evidcore.errors import DataError
from evidcore.volume import prepare
from evidcore.volume.preparation import resize

WIDE = (-1000.0, 1000.0)
RAMP = np.linspace(-900, 900, 6 * 8 * 10).reshape(6, 8, 10).astype(np.float32)


def spec(size=(6, 8, 10), spacing=None, windows=(WIDE,)) -> EncoderInput:
    return EncoderInput(size_zyx=size, spacing_mm_zyx=spacing, windows=windows)


def crop(path: Path, box=None, **marks) -> Crop:
    return Crop(
        volume=VolumeRef(path=str(path), intensity=marks.pop("intensity", "hu")), box_zyx=box, **marks
    )


def test_each_window_becomes_a_channel_from_minus_one_to_one(write):
    # by hand: 2 (v + 100) / 300 - 1, clamped
    result = prepare(crop(write(RAMP)), spec(windows=(WIDE, (-100.0, 200.0))))
    assert result.shape == (2, 6, 8, 10)
    assert result.dtype == torch.float32
    np.testing.assert_allclose(result[0], RAMP / 1000, atol=1e-6)
    np.testing.assert_allclose(result[1], np.clip((RAMP + 100) / 150 - 1, -1, 1), atol=1e-6)


def test_a_box_is_cut_before_anything_else(write):
    box = (1, 3, 2, 6, 0, 5)
    result = prepare(crop(write(RAMP), box), spec((2, 4, 5)))
    np.testing.assert_allclose(result[0], RAMP[1:3, 2:6, 0:5] / 1000, atol=1e-6)


def test_the_whole_field_of_view_is_resized(write):
    result = prepare(crop(write(RAMP)), spec((9, 16, 11)))
    expected = functional.interpolate(torch.tensor(RAMP)[None, None] / 1000, (9, 16, 11), mode="trilinear")
    torch.testing.assert_close(result, expected[0])


def test_a_given_size_takes_the_place_of_the_usual_one(write):
    assert prepare(crop(write(RAMP)), spec(), (1, 4, 4)).shape == (1, 1, 4, 4)


def test_shrinking_counts_every_voxel():
    # by hand: halving with the linear filter weighs four neighbours 1/8, 3/8, 3/8, 1/8
    line = torch.tensor([0.0, 0, 0, 0, 8, 0, 0, 0]).reshape(1, 1, 8)
    np.testing.assert_allclose(resize(line, (1, 1, 4))[0, 0], [0, 1, 3, 0], atol=1e-6)
    for axis in range(3):
        spike = torch.zeros(8, 8, 8)
        spike[tuple(5 if place == axis else slice(None) for place in range(3))] = 8.0
        small = resize(spike, tuple(2 if place == axis else 8 for place in range(3)))
        assert small.sum() > 0, "a thin sheet must not vanish"


def test_growing_equals_trilinear():
    values = torch.randn(5, 6, 7, generator=torch.Generator().manual_seed(0))
    expected = functional.interpolate(values[None, None], (11, 9, 20), mode="trilinear")[0, 0]
    torch.testing.assert_close(resize(values, (11, 9, 20)), expected)


def test_a_declared_spacing_is_resampled_to_and_centred(write):
    # 3x2x1 mm to 1.5 mm in z: twice the slices; cut to the 4 in the middle, x filled with air on both sides
    flat = np.zeros((6, 8, 10), np.int16)
    flat[1:5] = 500
    result = prepare(crop(write(flat)), spec((4, 8, 14), spacing=(1.5, 2.0, 1.0)))[0]
    np.testing.assert_allclose(result[:, :, 2:12], 0.5)
    np.testing.assert_allclose(result[:, :, :2], -1.0)
    np.testing.assert_allclose(result[:, :, 12:], -1.0)


def test_a_sphere_stays_a_sphere_in_mm(write):
    z, y, x = np.ogrid[-10:11, -15:16, -30:31]
    inside = (z * 3.0) ** 2 + (y * 2.0) ** 2 + (x * 1.0) ** 2 < 20**2
    path = write(np.where(inside, 1000, -1000).astype(np.int16))
    result = prepare(crop(path), spec((40, 40, 40), spacing=(1.5, 1.5, 1.5)))[0] > 0
    extents = [float(result.any(dim=pair).sum()) * 1.5 for pair in ((1, 2), (0, 2), (0, 1))]
    assert all(abs(extent - 40) <= 4.5 for extent in extents), extents


def test_a_blank_crop_equals_the_volume_filled_with_air(write):
    air = prepare(crop(write(np.full((6, 8, 10), -1000, np.int16))), spec(windows=(WIDE, (-1200.0, 0.0))))
    blank = prepare(crop(write(RAMP), blank=True), spec(windows=(WIDE, (-1200.0, 0.0))))
    torch.testing.assert_close(blank, air)
    assert set(prepare(crop(write(RAMP), blank=True), spec(windows=())).unique().tolist()) == {-1.0}


def test_without_windows_the_volume_s_own_percentiles_are_the_ends(write):
    noise = np.random.default_rng(3).gamma(2.0, 100.0, (6, 8, 10)).astype(np.float32)
    low, high = np.percentile(noise, (0.5, 99.5))
    for intensity in ("arbitrary", "hu"):
        result = prepare(crop(write(noise), intensity=intensity), spec(windows=()))
        np.testing.assert_allclose(result[0], np.clip(2 * (noise - low) / (high - low) - 1, -1, 1), atol=1e-5)


def test_a_crop_is_scaled_like_its_volume(write):
    noise = np.random.default_rng(3).gamma(2.0, 100.0, (6, 8, 10)).astype(np.float32)
    path = write(noise)
    whole = prepare(crop(path, intensity="arbitrary"), spec(windows=()))
    part = prepare(crop(path, (2, 3, 0, 8, 0, 10), intensity="arbitrary"), spec(windows=()), (1, 8, 10))
    torch.testing.assert_close(part[:, 0], whole[:, 2])


def test_a_changed_file_is_read_again(write):
    path = write(np.zeros((6, 8, 10), np.int16))
    assert prepare(crop(path), spec()).max() == 0
    write(np.full((6, 8, 10), 700, np.int16))
    assert prepare(crop(path), spec()).min() == pytest.approx(0.7)


def test_hu_windows_on_arbitrary_intensity_are_refused(write):
    path = write(RAMP)
    with pytest.raises(DataError) as caught:
        prepare(crop(path, intensity="arbitrary"), spec(windows=((-160.0, 240.0),)))
    assert f"{path}: the volume's intensity is 'arbitrary', the encoder declares HU windows" in str(
        caught.value
    )
    assert "[(-160.0, 240.0)]. Set windows = []" in str(caught.value)


def test_a_volume_of_one_value_has_no_range(write):
    path = write(np.full((6, 8, 10), 3, np.int16))
    with pytest.raises(
        DataError, match=r"99 % of the voxels have the value 3\.0, so there is no intensity range"
    ):
        prepare(crop(path, intensity="arbitrary"), spec(windows=()))


@pytest.mark.parametrize("box", [(0, 7, 0, 8, 0, 10), (2, 2, 0, 8, 0, 10), (-1, 2, 0, 8, 0, 10)])
def test_a_box_outside_the_volume_is_refused(write, box):
    with pytest.raises(DataError) as caught:
        prepare(crop(write(RAMP), box), spec())
    assert f"the box {box} (z0, z1, y0, y1, x0, x1) must hold voxels of the volume" in str(caught.value)
    assert "whose shape is (6, 8, 10)" in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"gone\.nii: there is no such file"):
        prepare(crop(tmp_path / "gone.nii"), spec())


def test_the_uri_gives_the_same_pixels(write):
    shown = crop(write(RAMP), (1, 4, 0, 8, 2, 9))
    for one in (shown, dataclasses.replace(shown, blank=True)):
        torch.testing.assert_close(prepare(Crop.parse_uri(one.uri()), spec()), prepare(one, spec()))


def test_a_real_scan_is_prepared(real_data):
    path = real_data / "totalsegmentator" / "example_ct.nii.gz"
    result = prepare(crop(path), spec((32, 64, 64), windows=(WIDE, (-160.0, 240.0))))
    assert result.shape == (2, 32, 64, 64)
    assert bool(torch.isfinite(result).all())
    assert -0.8 < result[0].mean() < 0.2
