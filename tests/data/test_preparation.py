import functools
import itertools
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from evidcore_plugin_doctor.prepare import Filled, Wanted, fill_case
from torch.nn import functional

from evidcore.api import Crop, DataError, EncoderInput, VolumeRef, prepare, read
from evidcore.cache import cache_folder
from evidcore.data import content_key
from evidcore.data.nifti import save_volume
from evidcore.data.preparation import get_input, put_input, resize, show

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


def test_shrinking_counts_every_voxel():
    # by hand: halving with the linear filter weighs four neighbours 1/8, 3/8, 3/8, 1/8
    line = torch.tensor([0.0, 0, 0, 0, 8, 0, 0, 0]).reshape(1, 1, 8)
    np.testing.assert_allclose(resize(line, (1, 1, 4))[0, 0], [0, 1, 3, 0], atol=1e-6)
    for axis, place in itertools.product(range(3), range(8)):
        sheet = torch.zeros(8, 8, 8)
        sheet[tuple(place if index == axis else slice(None) for index in range(3))] = 8.0
        small = resize(sheet, tuple(2 if index == axis else 8 for index in range(3)))
        assert small.sum() > 64, f"a thin sheet must not vanish wherever it lies, here {place} of {axis}"


def test_a_declared_spacing_is_resampled_to_and_centred(write):
    # 3x2x1 mm to 1.5 mm in z: twice the slices; cut to the 4 in the middle, x filled with air on both sides
    flat = np.zeros((6, 8, 10), np.int16)
    flat[1:5] = 500
    result = prepare(crop(write(flat)), spec((4, 8, 14), spacing=(1.5, 2.0, 1.0)))[0]
    np.testing.assert_allclose(result[:, :, 2:12], 0.5)
    np.testing.assert_allclose(result[:, :, :2], -1.0)
    np.testing.assert_allclose(result[:, :, 12:], -1.0)


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


def test_arbitrary_intensities_take_no_hu_windows_and_one_value_is_no_range(write):
    path, flat = write(RAMP), write(np.full((6, 8, 10), 3, np.int16), "flat.nii")
    said = "the volume's intensity is 'arbitrary', the encoder declares HU windows"
    with pytest.raises(DataError, match=rf"^{path}: {said}.*\[\(-160\.0, 240\.0\)\]\. Set windows = \[\]"):
        prepare(crop(path, intensity="arbitrary"), spec(windows=((-160.0, 240.0),)))
    with pytest.raises(DataError, match=r"99 % of the voxels have the value 3\.0, so there is no intensity"):
        prepare(crop(flat, intensity="arbitrary"), spec(windows=()))


@pytest.mark.parametrize("box", [(0, 7, 0, 8, 0, 10), (2, 2, 0, 8, 0, 10), (-1, 2, 0, 8, 0, 10)])
def test_a_box_outside_the_volume_is_refused(write, box):
    said = f"the box {box} (z0, z1, y0, y1, x0, x1) must hold voxels of the volume"
    with pytest.raises(DataError, match=re.escape(said) + r".*whose shape is \(6, 8, 10\)"):
        prepare(crop(write(RAMP), box), spec())


SPEC = EncoderInput(size_zyx=(8, 16, 20), spacing_mm_zyx=None, windows=((-1000.0, 1000.0), (-160.0, 240.0)))
VALUES = np.random.default_rng(0).integers(-1000, 2001, (12, 220, 200)).astype(np.int16)


@pytest.fixture
def shown(write) -> Crop:
    return Crop(volume=VolumeRef(path=str(write(VALUES, "scan.nii"))))


def filler(**options) -> Callable[[Wanted], Filled]:
    return functools.partial(fill_case, spec=SPEC, **{"keeps_volumes": True, "began_s": 0.0, **options})


def wanted(crop: Crop, size=(8, 16, 20)) -> Wanted:
    return Wanted(case="a/train/1", volumes=(crop.volume,), shown=((crop, size),))


def test_a_kept_input_is_used_and_a_damaged_one_is_made_again(shown, caplog):
    fresh = prepare(shown, SPEC)
    assert put_input(content_key(shown, SPEC), fresh.numpy())
    np.testing.assert_array_equal(get_input(content_key(shown, SPEC)), fresh.numpy())
    again = prepare(shown, SPEC)
    assert torch.equal(again, fresh)
    again.add_(1)  # it is the caller's own
    assert torch.equal(prepare(shown, SPEC), fresh)
    put_input(content_key(shown, SPEC), np.zeros_like(fresh.numpy()))
    assert prepare(shown, SPEC).abs().max() == 0
    (entry,) = (cache_folder() / "inputs").glob("*.safetensors")
    entry.write_bytes(entry.read_bytes()[:-1] + b"\1")
    assert torch.equal(prepare(shown, SPEC), fresh)
    assert f"{entry}: its header has another checksum; it is made again" in caplog.text
    assert not entry.exists()


def test_a_box_reads_its_slices_alone_and_gives_the_same_bits(shown, monkeypatch, damaged):
    box = Crop(volume=shown.volume, box_zyx=(3, 5, 20, 120, 0, 200))
    monkeypatch.setenv("EVID_CACHE_GB", "0")
    alone = prepare(box, SPEC)
    monkeypatch.delenv("EVID_CACHE_GB")
    assert torch.equal(prepare(box, SPEC), alone)
    (entry,) = (cache_folder() / "volumes").glob("*.safetensors")
    damaged(entry, VALUES[6])
    held = entry.read_bytes()
    assert torch.equal(prepare(box, SPEC), alone)
    assert held == entry.read_bytes(), "the damaged slice 6 was not looked at"


def test_a_whole_volume_that_is_kept_gives_the_same_bits(shown):
    alone = prepare(shown, SPEC)
    assert not (cache_folder() / "volumes").exists(), "whole volumes are not kept unasked"
    filler()(Wanted(case="", volumes=(shown.volume,), shown=()))
    assert torch.equal(prepare(shown, SPEC), alone)


def test_an_input_larger_than_its_voxels_is_not_filled(shown):
    large = wanted(shown, size=(16, 220, 200))
    assert filler(keeps_volumes=False)(large).outcome == "not_needed"


def test_what_this_fill_wrote_makes_no_room_for_the_rest_of_it(write, monkeypatch):
    monkeypatch.setenv("EVID_CACHE_GB", "0.0012")  # one of two
    refs = [VolumeRef(path=str(write(VALUES + shift, f"{shift}.nii"))) for shift in range(2)]
    asked = [Wanted(case=str(index), volumes=(ref,), shown=()) for index, ref in enumerate(refs)]
    for _ in range(2):
        outcomes = [filler()(item).outcome for item in asked]
        assert outcomes[1] == "no_room"
    assert outcomes[0] == "already_there", "a second fill does not undo the first"


@pytest.mark.parametrize("keeps_volumes", [True, False])
def test_a_case_whose_file_is_replaced_meanwhile_is_left_out(shown, write, read_meanwhile, keeps_volumes):
    write(VALUES[::-1], "scan.nii")  # which no other test holds in memory
    with read_meanwhile(shown.volume.path, lambda: write(VALUES + 1, "scan.nii")):
        result = filler(keeps_volumes=keeps_volumes)(wanted(shown))
    assert result.outcome == "left_out"
    assert result.reason == (
        f"{shown.volume.path}: changed while it was read. Prepare again once nothing writes to it."
    )
    assert not list(cache_folder().rglob("*.safetensors"))


def test_what_is_shown_lies_on_its_own_grid_in_whole_hu(write):
    path = write(RAMP, spacing_mm_zyx=(3.0, 2.0, 1.0))
    whole, box = show(crop(path)), show(crop(path, (1, 3, 2, 6, 4, 9)))
    assert whole.array.dtype == np.int16
    assert np.array_equal(whole.array, np.rint(RAMP))
    assert np.array_equal(box.array, np.rint(RAMP)[1:3, 2:6, 4:9])
    first = whole.affine @ (1, 2, 4, 1)
    np.testing.assert_allclose(box.affine @ (0, 0, 0, 1), first)
    np.testing.assert_allclose(box.spacing_mm_zyx, (3.0, 2.0, 1.0))


def test_changes_keep_type_and_grid_and_do_what_they_say(write):
    path = write(RAMP)
    own, blank = show(crop(path)), show(crop(path, blank=True))
    scrambled, perturbed = (show(crop(path, change=change)) for change in ("scrambled", "perturbed"))
    for item in (blank, scrambled, perturbed):
        assert (item.array.dtype, item.array.shape) == (own.array.dtype, own.array.shape)
        assert np.array_equal(item.affine, own.affine)
    assert (blank.array == -1000).all()
    assert np.array_equal(np.sort(scrambled.array, None), np.sort(own.array, None))
    assert not np.array_equal(scrambled.array, own.array)
    noise = perturbed.array[1:, 1:, 1:].astype(float) - own.array[:-1, :-1, :-1]
    low, high = np.percentile(RAMP, (0.5, 99.5))
    assert 0.8 < noise.std() / (0.01 * (high - low)) < 1.2
    assert np.array_equal(show(crop(path, change="perturbed")).array, perturbed.array)


def test_arbitrary_intensities_keep_their_scale_when_shown(write):
    path = write(RAMP / 900)
    own, blank = (show(crop(path, intensity="arbitrary", blank=blank)) for blank in (False, True))
    assert own.array.dtype == blank.array.dtype == np.float32
    np.testing.assert_allclose(own.array, RAMP / 900)
    np.testing.assert_allclose(blank.array, np.percentile(RAMP / 900, 0.5), rtol=1e-4)


@pytest.mark.parametrize("change", ["", "perturbed", "scrambled"])
def test_a_shown_volume_is_read_back_as_it_was(write, tmp_path, change):
    shown = show(crop(write(RAMP, spacing_mm_zyx=(3.0, 2.0, 1.0)), change=change))
    save_volume(shown, tmp_path / "saved.nii.gz")
    again = read(VolumeRef(path=str(tmp_path / "saved.nii.gz")))
    assert np.array_equal(again.array, shown.array)
    np.testing.assert_allclose(again.affine, shown.affine)
