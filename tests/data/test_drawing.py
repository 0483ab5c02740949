"""Pictures that are made of a volume: tiles, projections, photographs; and their keys."""

import dataclasses

import numpy as np
import pytest
import torch
from PIL import Image

from evidcore.api import Crop, DataError, EncoderInput, VolumeRef, prepare
from evidcore.case import Drawing
from evidcore.data import content_key
from evidcore.data.content import crop_key
from evidcore.data.preparation import show

SPACING = (3.0, 2.0, 1.0)
SPEC = EncoderInput(size_zyx=(1, 4, 5), spacing_mm_zyx=None, windows=((-1000.0, 1000.0),), any_depth=True)
GREY = dataclasses.replace(SPEC, windows=())
COLOURS = dataclasses.replace(GREY, colours=True)
HU = np.arange(3 * 4 * 5, dtype=np.int16).reshape(3, 4, 5) * 10 - 300
DRAWINGS = [
    None, Drawing(kind="slices", slices=(0, 2)), Drawing(kind="slices", slices=(2, 0)),
    Drawing(kind="tiles", slices=(0, 2), columns=2), Drawing(kind="tiles", slices=(0, 2), columns=1),
    Drawing(kind="mean", axis="y"), Drawing(kind="mean", axis="x"), Drawing(kind="attenuation", axis="y"),
]  # fmt: skip


@pytest.fixture
def scan(write) -> VolumeRef:
    return VolumeRef(path=str(write(HU)))


@pytest.fixture
def photo(tmp_path):
    def saved(values, name="photo.png", **options) -> Crop:
        Image.fromarray(values).save(tmp_path / name, **options)
        ref = VolumeRef(path=str(tmp_path / name), intensity="arbitrary")
        return Crop(volume=ref, drawing=Drawing(kind="picture"))

    return saved


def drawn(ref, size, **drawing) -> np.ndarray:
    """Return HU of what is drawn, (z, y, x)."""
    crop = Crop(volume=ref, drawing=Drawing(**drawing))
    return (prepare(crop, SPEC, size)[0].numpy() * 1000).round(3)


def test_every_way_of_drawing_has_its_own_keys(scan):
    crops = [Crop(volume=scan, drawing=drawing) for drawing in DRAWINGS]
    assert len({content_key(crop, SPEC) for crop in crops}) == len(DRAWINGS)
    assert len({crop_key(crop) for crop in crops}) == len(DRAWINGS)
    assert len({crop.uri() for crop in crops}) == len(DRAWINGS)
    assert content_key(crops[0], GREY) != content_key(crops[0], COLOURS)
    same = dataclasses.replace(SPEC, multiple_px=28)  # says which sizes may be asked for
    assert content_key(crops[0], SPEC) == content_key(crops[0], same)


def test_slices_stand_as_listed(scan):
    assert (drawn(scan, (2, 4, 5), kind="slices", slices=(2, 0)) == HU[[2, 0]]).all()


def test_tiles_stand_row_by_row_with_the_lowest_value_in_those_left_over(scan):
    result = drawn(scan, (1, 8, 10), kind="tiles", slices=(0, 1, 2), columns=2)[0]
    assert (result[:4, :5] == HU[0]).all()
    assert (result[:4, 5:] == HU[1]).all()
    assert (result[4:, :5] == HU[2]).all()
    assert (result[4:, 5:] == HU.min()).all()


def test_a_mean_is_taken_along_each_ray_with_superior_above(scan):
    for axis, number, width in (("y", 1, 5), ("x", 2, 4)):
        result = drawn(scan, (1, 3, width), kind="mean", axis=axis)[0]
        np.testing.assert_allclose(result, HU.mean(axis=number)[::-1], atol=0.01)


def test_attenuation_is_hand_arithmetic(write):
    hu = np.full((2, 3, 4), -1000, np.int16)  # spacing 3, 2, 1 mm
    hu[1, :, 0] = 0  # 3 voxels of water, 2 mm each, in front of each other: 6 mm
    hu[0, 2, 1] = 1000  # one voxel twice as dense: 2 mm, as much as 4 mm of water
    hu[0, 1, 1] = -3000  # what lies outside a scanner's field absorbs nothing
    ref = VolumeRef(path=str(write(hu, spacing_mm_zyx=SPACING)))
    crop = Crop(volume=ref, drawing=Drawing(kind="attenuation", axis="y"))
    film = np.array([[0.0206 * 6, 0, 0, 0], [0, 0.0206 * 4, 0, 0]])
    np.testing.assert_allclose(show(crop).array[0], film, atol=1e-6)
    # 8 pixels: the 99.5th percentile lies at 6.965 of 7 steps, between the two largest
    white = 0.0206 * 4 + 0.965 * (0.0206 * 6 - 0.0206 * 4)
    share = (prepare(crop, SPEC, (1, 2, 4))[0, 0] + 1) / 2
    np.testing.assert_allclose(share.numpy(), np.minimum(film / white, 1), atol=1e-6)
    side = Crop(volume=ref, drawing=Drawing(kind="attenuation", axis="x"))
    np.testing.assert_allclose(show(side).array[0, 0], [0.0206] * 3, atol=1e-6)
    hu[:] = -1000
    nothing = VolumeRef(path=str(write(hu, "air.nii.gz", spacing_mm_zyx=SPACING)))
    assert (prepare(dataclasses.replace(crop, volume=nothing), SPEC) == -1).all()


def test_a_film_of_air_is_black_whatever_the_windows(scan):
    narrow = dataclasses.replace(SPEC, windows=((-1350.0, 150.0), (-160.0, 240.0)))
    film = Crop(volume=scan, drawing=Drawing(kind="attenuation", axis="y"))
    blank = dataclasses.replace(film, blank=True)
    assert prepare(blank, narrow).shape == prepare(film, narrow).shape == (2, 1, 4, 5)
    assert (prepare(blank, narrow) == -1).all()
    assert (prepare(film, narrow)[0] == prepare(film, narrow)[1]).all()
    assert content_key(blank, narrow) != content_key(Crop(volume=scan, blank=True), narrow)


def test_a_box_is_cut_out_before_anything_is_drawn(scan):
    box = (1, 3, 1, 3, 0, 4)
    tiles = Crop(volume=scan, box_zyx=box, drawing=Drawing(kind="tiles", slices=(2, 1), columns=2))
    result = (prepare(tiles, SPEC, (1, 2, 8))[0, 0].numpy() * 1000).round(3)
    assert (result == np.concatenate([HU[2, 1:3, :4], HU[1, 1:3, :4]], axis=1)).all()
    lacking = dataclasses.replace(tiles, drawing=Drawing(kind="slices", slices=(0,)))
    with pytest.raises(DataError, match=r"slice 0 is drawn, and the crop has slices 1 to 2\."):
        prepare(lacking, SPEC)


def test_a_film_of_arbitrary_values_is_refused_and_their_mean_is_not(scan):
    ref = dataclasses.replace(scan, intensity="arbitrary")
    with pytest.raises(DataError, match=r"attenuation is worked out of HU, .* is 'arbitrary'"):
        prepare(Crop(volume=ref, drawing=Drawing(kind="attenuation", axis="y")), GREY)
    assert prepare(Crop(volume=ref, drawing=Drawing(kind="mean", axis="y")), GREY).std() > 0


@pytest.mark.parametrize("change", ["scrambled", "perturbed", "noisy"])
def test_what_is_drawn_is_changed_as_other_crops_are(scan, change, photo):
    rng = np.random.default_rng(0)
    coloured = photo(rng.integers(0, 256, (4, 5, 3), np.uint8))
    tiles = Crop(volume=scan, drawing=Drawing(kind="tiles", slices=(0, 2), columns=2))
    for crop, spec, size in ((tiles, SPEC, (1, 4, 10)), (coloured, COLOURS, (1, 4, 5))):
        changed = dataclasses.replace(crop, change=change)
        before, after = prepare(crop, spec, size), prepare(changed, spec, size)
        assert torch.equal(after, prepare(changed, spec, size))
        assert not torch.equal(before, after)
        if change == "scrambled":  # colours of a pixel stay together
            pixels = [sorted(item.flatten(1).T.tolist()) for item in (before, after)]
            assert pixels[0] == pixels[1]


def test_a_photograph_is_resized_as_pil_does_it(photo):
    rng = np.random.default_rng(1)
    values = rng.integers(0, 256, (30, 41, 3), np.uint8)
    crop = photo(values)
    expected = np.asarray(Image.fromarray(values).resize((28, 14), Image.Resampling.BICUBIC), np.float32)
    result = prepare(crop, COLOURS, (1, 14, 28))
    np.testing.assert_allclose(result[:, 0].numpy().transpose(1, 2, 0), expected / 127.5 - 1, atol=1e-6)
    grey = prepare(crop, GREY, (1, 30, 41))
    luminance = np.asarray(Image.fromarray(values).convert("L"), np.float32)
    np.testing.assert_allclose(grey[0, 0].numpy(), luminance / 127.5 - 1, atol=1e-6)
    part = prepare(crop.cut((0, 1, 10, 20, 5, 15)), COLOURS, (1, 10, 10))
    np.testing.assert_allclose(part[0, 0].numpy(), values[10:20, 5:15, 0] / 127.5 - 1, atol=1e-6)
    assert (prepare(dataclasses.replace(crop, blank=True), COLOURS, (1, 4, 5)) == -1).all()


def test_greys_of_16_bits_are_scaled_by_percentiles(photo):
    values = np.linspace(0, 40_000, 20 * 25).reshape(20, 25).astype(np.uint16)
    crop = photo(values)
    plain = dataclasses.replace(crop, drawing=None)
    result = prepare(crop, COLOURS, (1, 20, 25))
    assert torch.equal(result, prepare(plain, GREY, (1, 20, 25)).expand(3, -1, -1, -1))
    assert (result.min(), result.max()) == (-1, 1)


def test_a_volume_drawn_as_a_photograph_is_shown_as_it_is(scan):
    box = (1, 2, 0, 4, 0, 5)
    item = Crop(volume=scan, box_zyx=box, drawing=Drawing(kind="picture"))
    assert torch.equal(prepare(item, SPEC), prepare(Crop(volume=scan, box_zyx=box), SPEC))


def test_other_volumes_fill_the_three_channels_of_an_encoder_of_colours(scan):
    ref = dataclasses.replace(scan, intensity="arbitrary")
    result = prepare(Crop(volume=ref), COLOURS, (3, 4, 5))
    assert COLOURS.channels == 3
    assert torch.equal(result, prepare(Crop(volume=ref), GREY, (3, 4, 5)).expand(3, -1, -1, -1))


def test_files_that_are_handed_over_hold_what_is_drawn(scan, photo):
    tiles = show(Crop(volume=scan, drawing=Drawing(kind="tiles", slices=(0, 2), columns=2)))
    assert tiles.array.dtype == np.int16
    assert (tiles.array == np.concatenate([HU[0], HU[2]], axis=1)).all()
    film = Crop(volume=scan, drawing=Drawing(kind="attenuation", axis="y"))
    held = show(film)
    water = (1 + HU.astype(float) / 1000).sum(axis=1)[::-1]
    np.testing.assert_allclose(held.array[0], 0.0206 * 2 * water, atol=1e-5)
    assert held.spacing_mm_zyx == pytest.approx((8.0, 3.0, 1.0))  # 4 rows of 2 mm deep
    assert (show(dataclasses.replace(film, blank=True)).array == 0).all()
    assert show(dataclasses.replace(film, change="noisy")).array.std() > 0
    coloured = np.arange(60, dtype=np.uint8).reshape(4, 5, 3)
    luminance = np.asarray(Image.fromarray(coloured).convert("L"))
    assert (show(photo(coloured)).array[0] == luminance).all()
