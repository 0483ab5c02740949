import base64
import io
import re

import numpy as np
import pytest
from evidcore_plugin_pages.cases import Known
from evidcore_plugin_pages.gallery import Gallery, drawn_pictures, outline, render
from PIL import Image

from evidcore.api import Case, Crop, MaskRef, VolumeRef, read
from evidcore.case import Drawing


def picture(uri: str) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.removeprefix("data:image/png;base64,")))))


def test_windows_map_hu_to_grey_by_hand():
    array = np.array([[[-2000, -1350, -600, 150, 900]]], dtype=np.int16)
    drawn = render(array, (1.0, 1.0, 1.0), is_hu=True, masks={})
    # -600 HU is the middle of the lung window: 31.5 of 63 greys rounds to 32, and 32 * 255 / 63 = 129.5
    assert picture(drawn.windows["lung"][0])[0].tolist() == [0, 0, 130, 255, 255]
    # 150 HU is 310 of the 400 HU above -160: 48.8 of 63, 49 * 255 / 63 = 198.3
    assert picture(drawn.windows["mediastinum"][0])[0].tolist() == [0, 0, 0, 198, 255]


def test_arbitrary_intensities_get_one_window_and_no_hu():
    array = np.linspace(0, 1, 1000, dtype=np.float32).reshape(10, 10, 10)
    drawn = render(array, (1.0, 1.0, 1.0), is_hu=False, masks={})
    assert list(drawn.windows) == ["full range"]
    assert picture(drawn.windows["full range"][0]).min() == 0
    assert picture(drawn.windows["full range"][9]).max() == 255


def test_the_patients_left_is_on_the_right_and_posterior_below():
    array = np.full((1, 8, 8), -1000, dtype=np.int16)
    array[0, 6, 5] = 500  # y to posterior, x to the patient's left
    drawn = render(array, (1.0, 1.0, 1.0), is_hu=True, masks={})
    assert np.argwhere(picture(drawn.windows["lung"][0]) == 255).tolist() == [[6, 5]]


@pytest.mark.parametrize(("keep", "z"), [([], (0, 100, 200, 300)), ([7, 100], (0, 7, 100, 200, 300))])
def test_some_slices_of_deep_volumes_and_those_that_must_be_seen_keep_their_source_index(keep, z):
    array = np.zeros((301, 4, 4), np.int16)
    drawn = render(array, (1.0, 1.0, 1.0), is_hu=True, masks={}, most_slices=4, keep=keep)
    assert (drawn.z, drawn.depth) == (z, 301)


def test_large_slices_are_averaged_down():
    array = np.tile(np.array([[-600, 150], [150, -600]], np.int16), (1, 100, 100))
    drawn = render(array, (1.0, 1.0, 1.0), is_hu=True, masks={}, most_pixels=100)
    assert (drawn.height_px, drawn.width_px) == (100, 100)
    mean = picture(drawn.windows["lung"][0])
    assert (mean == 190).all()  # -225 HU, three quarters of the window: 47 of 63 greys


@pytest.mark.parametrize("place", [(1, 1), (0, 3), (7, 6)])
def test_one_voxel_of_a_mask_is_seen_on_an_averaged_slice(place):
    mask = np.zeros((1, 9, 8), bool)  # the last two columns are cut, as in the picture
    mask[0][place] = True
    drawn = render(np.zeros((1, 9, 8), np.int16), (1.0,) * 3, is_hu=True, masks={"it": mask}, most_pixels=4)
    assert (drawn.height_px, drawn.width_px) == (3, 2)
    y, x = place[0] // 3, place[1] // 3
    if x < 2:
        expected = np.zeros((3, 2), bool)
        expected[y, x] = True
        assert drawn.outlines["it"] == {0: outline(expected)}
    else:
        assert drawn.outlines["it"] == {}


def test_aspect_is_in_millimetres():
    drawn = render(np.zeros((2, 10, 20), np.int16), (5.0, 2.0, 0.5), is_hu=True, masks={})
    assert drawn.aspect == pytest.approx((20 * 0.5) / (10 * 2.0))


def test_outline_of_one_voxel_is_its_four_edges():
    mask = np.zeros((3, 4), bool)
    mask[1, 2] = True
    assert sorted(re.findall(r"M\d+ \d+[HV]\d+", outline(mask))) == ["M2 1H3", "M2 1V2", "M2 2H3", "M3 1V2"]


def test_outline_length_is_the_perimeter_counted_by_hand():
    mask = np.random.default_rng(3).random((15, 12)) > 0.5
    padded = np.pad(mask, 1)
    steps = ((0, 1), (1, 0), (0, -1), (-1, 0))
    perimeter = sum(not padded[y + dy, x + dx] for y, x in np.argwhere(padded).tolist() for dy, dx in steps)
    drawn = 0
    for x, y, axis, stop in re.findall(r"M(\d+) (\d+)([HV])(\d+)", outline(mask)):
        drawn += int(stop) - int(x if axis == "H" else y)
    assert drawn == perimeter


def test_viewer_starts_where_the_finding_is_largest():
    large, small = np.zeros((2, 9, 8, 8), bool)
    large[2:5] = True
    small[6, 1, 1] = True
    array, masks = np.zeros((9, 8, 8), np.int16), {"large": large, "small": small}
    drawn = render(array, (1.0,) * 3, is_hu=True, masks=masks)
    assert drawn.start("small") == 6
    assert drawn.start("large") == 2
    assert drawn.start("none of them") == 2
    assert list(drawn.outlines["small"]) == [6]
    assert render(array, (1.0,) * 3, is_hu=True, masks={}).start() == 4


@pytest.fixture
def ref(tmp_path) -> VolumeRef:
    """Three slices of one HU each, 4 mm apart; pixels of 2 x 1 mm."""
    hu = np.array([-600, 150, -1350], np.int16)[:, None, None] * np.ones((1, 4, 5), np.int16)
    np.save(tmp_path / "scan.npy", hu)
    return VolumeRef(path=str(tmp_path / "scan.npy"), axes="SPL", spacing_mm_zyx=(4.0, 2.0, 1.0))


def test_tiles_are_shown_as_the_prompt_did_with_outlines_on_their_tile(ref):
    crop = Crop(volume=ref, drawing=Drawing(kind="tiles", slices=(0, 1), columns=2))
    mask = np.zeros((3, 4, 5), bool)
    mask[1, 2, 3] = True
    drawn = drawn_pictures(crop, read(ref), {"it": mask}, 96)
    assert picture(drawn.windows["lung"][0]).tolist() == [[130] * 5 + [255] * 5] * 4
    on_tile = np.zeros((4, 10), bool)
    on_tile[2, 8] = True
    assert drawn.outlines["it"] == {0: outline(on_tile)}
    assert drawn.sides == ()


def test_listed_slices_keep_their_source_index(ref):
    crop = Crop(volume=ref, drawing=Drawing(kind="slices", slices=(0, 2)))
    drawn = drawn_pictures(crop, read(ref), {}, 96)
    assert (drawn.z, drawn.depth) == ((0, 2), 3)
    assert dict(drawn.sides) == {"left": "R", "right": "L", "top": "A", "bottom": "P"}


@pytest.mark.parametrize(("axis", "left", "aspect"), [("y", "R", 5 / 12), ("x", "A", 8 / 12)])
@pytest.mark.parametrize("rays", ["mean", "attenuation"])
def test_projections_stand_upright_with_outlines_of_all_of_a_mask(ref, rays, axis, left, aspect):
    mask = np.zeros((3, 4, 5), bool)
    mask[2, 1, 1] = True  # the uppermost slice
    crop = Crop(volume=ref, drawing=Drawing(kind=rays, axis=axis))
    drawn = drawn_pictures(crop, read(ref), {"it": mask}, 96)
    seen = np.zeros((3, 5 if axis == "y" else 4), bool)
    seen[0, 1] = True
    assert drawn.outlines["it"] == {0: outline(seen)}
    assert (dict(drawn.sides)["left"], dict(drawn.sides)["top"]) == (left, "S")
    assert drawn.aspect == pytest.approx(aspect)
    shown = picture(next(iter(drawn.windows.values()))[0])
    assert shown[0].max() == 0
    assert shown[1].min() == 255  # 150 HU, in the middle


def test_a_photograph_is_shown_in_its_colours(tmp_path):
    values = np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8)
    Image.fromarray(values).save(tmp_path / "photo.png")
    ref = VolumeRef(path=str(tmp_path / "photo.png"), intensity="arbitrary")
    drawn = drawn_pictures(Crop(volume=ref, drawing=Drawing(kind="picture")), read(ref), {}, 96)
    assert (picture(drawn.windows["colours"][0]) == values).all()


def test_a_predicted_mask_is_outlined_under_its_segmenter_s_name(ref, tmp_path):
    np.savez(tmp_path / "masks.npz", mask=np.ones(read(ref).shape_zyx, bool))
    masks = {"liver": MaskRef(path=str(tmp_path / "masks.npz"), by="sam3")}
    case = Case(id="c", patient="p", volumes=(ref,), predicted=masks)
    shown = Gallery(budget_bytes=1_000_000).viewer([Crop(volume=ref).uri()], Known(case=case, phantom=False))
    assert "liver (by sam3)" in str(shown)


def test_every_way_of_drawing_a_volume_has_its_own_viewer(ref):
    crops = [Crop(volume=ref, drawing=Drawing(kind="attenuation", axis=axis)) for axis in ("y", "x", "y")]
    gallery = Gallery(budget_bytes=1_000_000)
    shown = str(gallery.viewer([crop.uri() for crop in crops], None))
    assert shown.count("<figure") == 2
    assert "The prompt showed this projection: the attenuation along each ray." in shown
    assert "volume-0" in shown
    assert "volume-1" in shown
    whole = str(gallery.viewer([Crop(volume=ref).uri()], None))
    assert "volume-2" in whole
    assert "projection" not in whole
    assert str(gallery.thumbnail([crops[0].uri()])) != str(gallery.thumbnail([Crop(volume=ref).uri()]))
