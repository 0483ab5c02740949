"""What the views show, at which size, and the way back from boxes to voxels."""

import dataclasses
import itertools

import numpy as np
import pytest
from evidcore_plugin_views.picture_boxes import PictureOptions, fitted
from evidcore_plugin_views.views import Drr, Image, Montage, Video
from evidcore_testing import check_view, volume_case
from PIL import Image as Pillow
from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

from evidcore.case import Box, Case, Crop, Drawing, TextPart, VisualPart, VolumeRef
from evidcore.contracts import EncoderInput
from evidcore.data import read
from evidcore.data.preparation import prepare
from evidcore.errors import DataError, RecipeError

FIXED = EncoderInput(size_zyx=(8, 32, 24), spacing_mm_zyx=None, windows=((-1000.0, 400.0),), any_depth=True)
ANY = dataclasses.replace(FIXED, multiple_px=28)
COLOURS = EncoderInput(
    size_zyx=(8, 56, 56), spacing_mm_zyx=None, windows=(), any_depth=True, multiple_px=28, colours=True
)
SIZE = (13, 16, 20)
PIXELS, WIDE = PictureOptions(boxes="pixels"), PictureOptions(multiple_px=32)
OUTSIDE = [(-1.0, 0.0, 5.0, 5.0), (0.0, 0.0, 1000.5, 5.0), (5.0, 0.0, 4.0, 5.0), (0.0, 0.0, 5.0)]


@pytest.fixture
def case(tmp_path) -> Case:
    return volume_case(tmp_path, size_zyx=SIZE)


@pytest.fixture
def picture(tmp_path) -> Case:
    """A photograph of 90 x 60 pixels, each of its own colour."""
    rows, columns = np.mgrid[:60, :90]
    values = np.stack([rows * 4, columns * 2, (rows + columns) % 7 * 30], axis=-1).astype(np.uint8)
    path = tmp_path / "photo.png"
    Pillow.fromarray(values).save(path)
    return Case(id="photo", patient=None, volumes=(VolumeRef(path=str(path), intensity="arbitrary"),))


def shown(view, case) -> list[VisualPart]:
    return [part for part in view.render(case) if isinstance(part, VisualPart)]


def words(view, case) -> list[str]:
    return [part.text for part in view.render(case) if isinstance(part, TextPart)]


@pytest.mark.parametrize("encoder", [FIXED, ANY])
def test_a_montage_keeps_its_contract(case, encoder):
    boxes = {
        (0, 0, 500, 500): (0.0, 1.0, 0.0, 1.0), (500, 0, 1000, 500): (0.0, 1.0, 0.0, 1.0),
        (625, 750, 750, 1000): (0.5, 1.0, 0.25, 0.5),
    }  # fmt: skip
    several = [(0, 0, 1000, 1000), (400, 0, 600, 400), (0, 480, 10, 520)]
    check_view(Montage(rows=2, columns=2), case, encoder, boxes=boxes, outside=[*OUTSIDE, *several])


@pytest.mark.parametrize("view", [Drr(directions=("front", "side")), Drr(rays="mean"), Video(slices=5)])
@pytest.mark.parametrize("encoder", [FIXED, ANY])
def test_projections_and_videos_keep_their_contract(case, view, encoder):
    boxes = {(0, 0, 1000, 1000): (0.0, 1.0, 0.0, 1.0)}
    check_view(view, case, encoder, boxes=boxes, outside=OUTSIDE)
    assert {view.to_source(part, (0, 0, 10, 10)) for part in shown(view, case)} == {None}


@pytest.mark.parametrize("encoder", [COLOURS, dataclasses.replace(FIXED, windows=())])
def test_a_picture_keeps_its_contract(picture, encoder):
    boxes = {(0, 0, 1000, 1000): (0.0, 1.0, 0.0, 1.0), (250, 500, 750, 1000): (0.5, 1.0, 0.25, 0.75)}
    check_view(Image(), picture, encoder, boxes=boxes, outside=OUTSIDE)


def test_a_montage_names_its_slices_and_lays_them_out_row_by_row(case):
    view = Montage(rows=2, columns=3)
    assert words(view, case) == ["slices 1, 3, 5, 7, 9, 11, in rows of 3:"]
    [part] = shown(view, case)
    assert part.crop.drawing == Drawing(kind="tiles", slices=(1, 3, 5, 7, 9, 11), columns=3)
    whole = prepare(part.crop, FIXED, (1, 32, 60))[0, 0]
    for place, z in enumerate((1, 3, 5, 7, 9, 11)):
        row, column = divmod(place, 3)
        alone = Crop(volume=part.crop.volume, box_zyx=(z, z + 1, 0, 16, 0, 20))
        tile = whole[16 * row : 16 * row + 16, 20 * column : 20 * column + 20]
        assert (tile == prepare(alone, FIXED, (1, 16, 20))[0, 0]).all()


def test_several_volumes_are_told_apart(case):
    twice = dataclasses.replace(case, volumes=case.volumes * 2)
    assert words(Montage(rows=1, columns=2), twice)[1] == "volume 2, slices 3, 9, in rows of 2:"
    assert words(Video(slices=2), twice) == ["volume 1, slices 3, 9:", "volume 2, slices 3, 9:"]
    assert words(Drr(), twice)[1] == "volume 2, projection from the front:"


def test_a_shallow_volume_fills_fewer_tiles_and_leftover_ones_hold_air(tmp_path):
    path = tmp_path / "shallow.npy"
    np.save(path, np.arange(5 * 16 * 20, dtype=np.int16).reshape(5, 16, 20) - 900)
    ref = VolumeRef(path=str(path), axes="SPL", spacing_mm_zyx=(5.0, 1.0, 1.0))
    case = Case(id="shallow", patient=None, volumes=(ref,))
    view = Montage(rows=2, columns=3)
    [part] = shown(view, case)
    assert part.crop.drawing.slices == (0, 1, 2, 3, 4)
    last = prepare(part.crop, FIXED, (1, 32, 60))[0, 0, 16:, 40:]
    assert (last == last.min()).all()
    with pytest.raises(ValueError, match=r"\[700, 600, 900, 900\] lies where the picture shows no slice"):
        view.to_source(part, (700, 600, 900, 900))
    [only] = shown(Montage(rows=2, columns=9), case)
    assert only.crop.drawing.columns == 5


def test_a_video_shows_slices_as_they_are(case):
    view = Video(slices=4)
    assert words(view, case) == ["slices 1, 4, 8, 11:"]
    [part] = shown(view, case)
    assert view.size_zyx(part, FIXED) == (4, 32, 24)
    pixels = prepare(part.crop, FIXED, (4, 16, 20))[0]
    for frame, z in zip(pixels, (1, 4, 8, 11), strict=True):
        alone = Crop(volume=part.crop.volume, box_zyx=(z, z + 1, 0, 16, 0, 20))
        assert (frame == prepare(alone, FIXED, (1, 16, 20))[0, 0]).all()
    closer = VisualPart(crop=part.crop.cut((4, 5, 0, 16, 4, 20)))
    assert closer.crop.drawing is None
    assert view.size_zyx(closer, FIXED) == (1, 32, 24)
    assert view.to_source(closer, (500, 0, 1000, 1000)) == Box(z=4, y0=0, y1=16, x0=12, x1=20)
    slab = VisualPart(crop=part.crop.cut((2, 12, 0, 16, 4, 20)))
    assert view.size_zyx(slab, FIXED) == (4, 32, 24)
    assert view.to_source(slab, (0, 0, 10, 10)) is None


def test_a_projection_sums_along_its_rays_with_the_head_above(case):
    volume = read(case.volumes[0])
    front, side = (part.crop for part in shown(Drr(directions=("front", "side"), rays="mean"), case))
    result = prepare(front, FIXED, (1, 13, 20))[0, 0].numpy()
    expected = np.clip((volume.array.astype(float).mean(axis=1) + 1000) / 700 - 1, -1, 1)[::-1]
    np.testing.assert_allclose(result, expected, atol=1e-5)
    result = prepare(side, FIXED, (1, 13, 16))[0, 0].numpy()
    expected = np.clip((volume.array.astype(float).mean(axis=2) + 1000) / 700 - 1, -1, 1)[::-1]
    np.testing.assert_allclose(result, expected, atol=1e-5)


# 40 x 30 voxels at 0.5 mm and 1 mm: 20 mm high, 30 mm wide, so 40 rows take as much room as 30 * 2 columns
@pytest.fixture
def oblong(tmp_path) -> Case:
    path = tmp_path / "oblong.npy"
    np.save(path, np.arange(2 * 40 * 30, dtype=np.int16).reshape(2, 40, 30))
    ref = VolumeRef(path=str(path), axes="SPL", spacing_mm_zyx=(5.0, 0.5, 1.0))
    return Case(id="oblong", patient=None, volumes=(ref,))


def test_a_picture_keeps_its_aspect_in_millimetres(oblong):
    [part] = shown(Montage(rows=1, columns=1), oblong)
    assert Montage(rows=1, columns=1).size_zyx(part, ANY) == (1, 56, 84)  # 40 x 60, least 56 * 56 pixels
    [front] = shown(Drr(), oblong)
    large = PictureOptions(least_pixels=1)
    assert Drr(pictures=large).size_zyx(front, ANY) == (1, 28, 28)  # 10 mm high, 30 mm wide


def test_boxes_in_every_unit_are_hand_arithmetic(oblong):
    # one slice of 40 x 30 voxels, shown at 56 x 84 pixels: 1.4 pixels a row, 2.8 a column
    expected = Box(z=1, y0=10, y1=30, x0=5, x1=20)
    written = {
        "voxels": (5, 10, 20, 30), "thousandths": (1000 / 6, 250, 2000 / 3, 750), "pixels": (14, 14, 56, 42),
    }  # fmt: skip
    for unit, box in written.items():
        view = Montage(rows=1, columns=1, pictures=PictureOptions(boxes=unit))
        [part] = shown(view, oblong)
        assert view.from_source(part, expected) == pytest.approx(box)
        assert view.to_source(part, box) == expected
    view = Montage(rows=1, columns=1, pictures=PIXELS)
    assert view.to_source(part, (0, 0, 84, 56)) == Box(z=1, y0=0, y1=40, x0=0, x1=30)
    with pytest.raises(ValueError, match=r"\[0, 0, 85, 56\] must lie inside .*in pixels: .*x1 <= 84 .*<= 56"):
        view.to_source(part, (0, 0, 85, 56))


def test_boxes_on_tiles_are_hand_arithmetic(oblong):
    # both slices side by side: 40 x 60 voxels, 1.4 pixels a row, 2.8 a column; the second starts at pixel 84
    view = Montage(rows=1, columns=2, pictures=PictureOptions(boxes="pixels", least_pixels=56 * 168))
    [part] = shown(view, oblong)
    assert view.size_zyx(part, ANY) == (1, 56, 168)
    assert view.from_source(part, Box(z=1, y0=10, y1=30, x0=5, x1=20)) == pytest.approx((98, 14, 140, 42))
    assert view.to_source(part, (98, 14, 140, 42)) == Box(z=1, y0=10, y1=30, x0=5, x1=20)
    assert view.to_source(part, (14, 14, 56, 42)) == Box(z=0, y0=10, y1=30, x0=5, x1=20)
    assert view.to_source(part, (0, 0, 85, 56)) == Box(z=0, y0=0, y1=40, x0=0, x1=30)  # rounded by a pixel
    with pytest.raises(ValueError, match=r"\[0, 0, 86, 56\] lies on several slices"):
        view.to_source(part, (0, 0, 86, 56))
    with pytest.raises(ValueError, match=r"Box\(z=7, .*lies on none of the slices shown, z=0, 1"):
        view.from_source(part, Box(z=7, y0=0, y1=1, x0=0, x1=1))


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["thousandths", "pixels", "voxels"])
def test_every_voxel_box_comes_back_from_its_picture(case, picture, unit):
    rng = np.random.default_rng(0)
    pictures = PictureOptions(boxes=unit)
    for view, of in (
        (Montage(rows=3, columns=4, pictures=pictures), case),
        (Image(pictures=pictures), picture),
    ):
        [part] = shown(view, of)
        drawing = part.crop.drawing
        height, width = read(of.volumes[0]).shape_zyx[1:]
        for z in drawing.slices or (0,):
            for _ in range(50):
                (y0, y1), (x0, x1) = (
                    sorted(rng.choice(side + 1, 2, replace=False).tolist()) for side in (height, width)
                )
                box = Box(z=z, y0=y0, y1=y1, x0=x0, x1=x1)
                assert view.to_source(part, view.from_source(part, box)) == box


def test_sizes_are_those_of_the_published_processor():
    sides = (2, 13, 28, 41, 42, 43, 60, 224, 250, 333, 777, 1024, 1500, 3001)
    for height, width in itertools.product(sides, sides):
        for least, most, step in ((3136, 1003520, 28), (4096, 100_000, 32)):
            if max(height, width) > 200 * min(height, width):
                continue
            given = PictureOptions(least_pixels=least, most_pixels=most, multiple_px=step)
            expected = smart_resize(height, width, factor=step, min_pixels=least, max_pixels=most)
            assert fitted(height, width, given) == expected
    with pytest.raises(DataError, match=r"a picture of 402 x 2 pixels is too narrow: one side may be 200"):
        fitted(2, 402, PictureOptions())


def test_a_photograph_keeps_its_colours(picture):
    [part] = shown(Image(), picture)
    view = Image(pictures=PictureOptions(least_pixels=1, multiple_px=30))
    encoder = dataclasses.replace(COLOURS, multiple_px=30)
    assert view.size_zyx(part, encoder) == (1, 60, 90)
    pixels = prepare(part.crop, encoder, (1, 60, 90))[:, 0].numpy()
    values = np.asarray(Pillow.open(picture.volumes[0].path)).astype(np.float32)
    np.testing.assert_allclose(pixels, values.transpose(2, 0, 1) / 127.5 - 1, atol=1e-6)


WHOLE = dataclasses.replace(FIXED, any_depth=False)
SPACED = dataclasses.replace(FIXED, spacing_mm_zyx=(3.0, 1.0, 1.0))


@pytest.mark.parametrize(
    ("view", "encoder", "message"),
    [
        (Montage(), WHOLE, r"'montage' shows pictures, but the encoder takes exactly 8 slices"),
        (Drr(), SPACED, r"'drr' shows .* declares a spacing of \(3.0, 1.0, 1.0\) mm"),
        (Montage(pictures=PIXELS), FIXED, r"view.boxes: 'pixels' .* the encoder takes \(32, 24\) pixels"),
        (Montage(pictures=WIDE), ANY, r"multiple_px: the encoder's tokens are 28 pixels wide, got 32"),
    ],
)
def test_an_encoder_that_cannot_be_shown_pictures_is_refused(case, view, encoder, message):
    [part] = shown(Montage(), case)
    with pytest.raises(RecipeError, match=message):
        view.size_zyx(part, encoder)


def test_what_cannot_be_shown_is_refused_by_name(case, picture):
    [part] = shown(Montage(), case)
    thin = VisualPart(crop=part.crop.cut((0, 1, 0, 16, 0, 20)).cut((0, 1, 3, 4, 0, 20)))
    assert Montage().size_zyx(thin, ANY) == (1, 28, 252)
    with pytest.raises(RecipeError, match=r"view.most_pixels: .*least_pixels = 3136 .*28 pixels, got 3000"):
        PictureOptions(most_pixels=3000)
    for directions in ((), ("front", "front")):
        with pytest.raises(
            RecipeError, match="directions: must name 'front', 'side' or both, each once, got"
        ):
            Drr(directions=directions)
    with pytest.raises(DataError, match=r"'image' shows pictures of one slice, and this volume has 13\."):
        Image().render(case)
    [photo] = shown(Image(), picture)
    with pytest.raises(ValueError, match=r"a box has 4 numbers x0, y0, x1, y1, got \[1, 2\]"):
        Image().to_source(photo, (1, 2))
    with pytest.raises(ValueError, match=r"must lie inside what was shown, in thousandths"):
        Image().to_source(photo, (float("nan"), 0, 10, 10))
