import dataclasses
import tomllib
from pathlib import Path

import pytest
from evidcore_plugin_medvr.tools import CropTool, Measure, Zoom
from evidcore_plugin_views.views import Drr, Montage, Video
from evidcore_testing.checks_view import check_tool
from evidcore_testing.data import volume_case

from evidcore.api import Case, Crop, EncoderInput, Prompt, TextPart, VisualPart
from evidcore.builtin.views import Slices, Volume
from evidcore.errors import RecipeError
from evidcore.registry import factory

TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
SIZE = (12, 20, 40)  # of 5 x 2 x 2 mm


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return volume_case(tmp_path, size_zyx=SIZE)


def prompt(case: Case, view: Slices | Volume) -> Prompt:
    return Prompt(id="p", case=case, task="choice", parts=view.render(case))


GOOD_CROPS = [{"slice": 6, "box": [100, 200, 500, 800]}, {"slice": 2, "box": [0, 0, 1000, 1000], "volume": 1}]
GOOD_POINTS = [{"slice": 6, "from": [100, 200], "to": [500, 800]}, {"slice": 2, "from": [0, 0], "to": [0, 0]}]


@pytest.mark.parametrize("view", [Slices(slices=3), Volume()])
def test_crop_and_measure_keep_their_contract(case, view):
    check_tool(CropTool(view), prompt(case, view), GOOD_CROPS, bad=[{"slice": 6, "box": [0, 0, 1001, 5]}])
    bad = [{"slice": 6, "from": [0, 0], "to": [0, 1001]}]
    check_tool(Measure(view), prompt(case, view), GOOD_POINTS, bad=bad)


@pytest.mark.parametrize("view", [Slices(slices=1), Slices(slices=3), Volume()])
def test_the_zoom_tool_keeps_its_contract(case, view):
    # without a slice where several are shown, or a whole volume
    few = isinstance(view, Slices) and view.slices == 1
    bad = [{"slice": 6, "box": [0, 0, 1000, 50]}, *([] if few else [{"box": [0, 0, 1000, 1000]}])]
    tool = Zoom(view, smallest_side=4)
    check_tool(tool, prompt(case, view), [{"slice": 6, "box": [0, 0, 500, 800], "label": "cyst"}], bad=bad)


def test_a_slice_is_cropped_on_its_own_and_a_zoom_needs_none_where_one_is_shown(case):
    view = Slices(slices=3)
    tag, part = CropTool(view)({"slice": 6, "box": [100, 200, 500, 800]}, prompt(case, view))
    assert tag == TextPart(text="slice 6, closer:")
    assert part == VisualPart(crop=Crop(volume=case.volumes[0], box_zyx=(6, 7, 4, 16, 4, 20)))
    tool = Zoom(Slices(slices=1), smallest_side=4)
    named, bare = ({"slice": 6, "box": [0, 0, 500, 800]}, {"box": [0, 0, 500, 800]})
    asked = prompt(case, Slices(slices=1))
    assert tool(named, asked) == tool(bare, asked)


def test_a_box_on_a_montage_names_its_slice(case):
    view = Montage(rows=1, columns=2)  # slices 3 and 9
    asked = prompt(case, view)
    tag, shown = CropTool(view)({"box": [500, 0, 750, 1000]}, asked)
    assert tag == TextPart(text="slice 9, closer:")
    assert shown == VisualPart(crop=Crop(volume=case.volumes[0], box_zyx=(9, 10, 0, 20, 0, 20)))
    assert CropTool(view)({"slice": 9, "box": [500, 0, 750, 1000]}, asked) == (tag, shown)
    with pytest.raises(ValueError, match=r"\[500, 0, 750, 1000\] lies on slice 9, got 3"):
        CropTool(view)({"slice": 3, "box": [500, 0, 750, 1000]}, asked)
    with pytest.raises(ValueError, match="lies on several slices of the picture"):
        CropTool(view)({"box": [0, 0, 1000, 1000]}, asked)
    with pytest.raises(ValueError, match=r"missing: \['box'\]"):
        CropTool(view)({"slice": 3}, asked)
    assert Measure(view)({"from": [0, 0], "to": [250, 0]}, asked) == (TextPart(text="40.0 mm"),)
    with pytest.raises(ValueError, match="the points must lie on one slice, got 3 and 9"):
        Measure(view)({"from": [0, 0], "to": [750, 0]}, asked)


def test_a_slice_of_a_video_is_looked_at_alone_and_nothing_of_a_projection(case):
    asked = prompt(case, Video(slices=4))
    _, shown = CropTool(Video(slices=4), slab_slices=2)({"slice": 6, "box": [0, 0, 500, 1000]}, asked)
    assert shown == VisualPart(crop=Crop(volume=case.volumes[0], box_zyx=(5, 7, 0, 20, 0, 20)))
    with pytest.raises(ValueError, match="boxes have no meaning in a projection"):
        CropTool(Drr())({"slice": 6, "box": [0, 0, 500, 1000]}, prompt(case, Drr()))


@pytest.mark.parametrize(("options", "box", "message"), TABLE["bounds"])
def test_a_zoom_out_of_its_bounds_is_refused_by_name(case, options, box, message):
    with pytest.raises(ValueError, match=message):
        Zoom(Slices(slices=1), **options)({"box": box}, prompt(case, Slices(slices=1)))


def test_a_zoom_shows_4_voxels_at_least_and_less_is_refused_by_name(case):
    def built(smallest_side):
        table = {"use": "zoom", "smallest_side": smallest_side}
        return factory.build("tool", table, given={"view": Slices(slices=1)}, where="tools[0]")

    for tool in (built(4), CropTool(Slices(slices=1))):
        _, part = tool({"slice": 6, "box": [0, 0, 100, 200]}, prompt(case, Slices(slices=1)))
        assert part.crop.box_zyx == (6, 7, 0, 4, 0, 4)
    with pytest.raises(RecipeError, match=r"tools\[0\]\.smallest_side: must be greater than or equal to 4"):
        built(3)


@pytest.mark.parametrize(("z", "slab"), [(6, (4, 8)), (0, (0, 4)), (11, (8, 12))])
def test_a_volume_is_cropped_to_a_slab_inside_it(case, z, slab):
    tool = CropTool(Volume(), slab_slices=4)
    _, part = tool({"slice": z, "box": [0, 0, 500, 500]}, prompt(case, Volume()))
    assert part.crop.box_zyx == (*slab, 0, 10, 0, 20)
    thick = CropTool(Volume(), slab_slices=100)
    _, part = thick({"slice": z, "box": [0, 0, 500, 500]}, prompt(case, Volume()))
    assert part.crop.box_zyx[:2] == (0, 12)
    with pytest.raises(ValueError, match="slice 12 is not shown; shown: 0 to 11"):
        tool({"slice": 12, "box": [0, 0, 500, 500]}, prompt(case, Volume()))


def test_what_is_shown_is_cropped_not_what_the_case_holds_and_one_of_several_volumes_is_named(case, tmp_path):
    # the audit shows another patient's volume, or an empty one, in the place of the case's own
    other = volume_case(tmp_path / "other", 1, size_zyx=SIZE)
    shown = prompt(case, Volume()).showing([Crop(volume=other.volumes[0], blank=True)])
    _, part = CropTool(Volume())({"slice": 6, "box": [0, 0, 500, 500]}, shown)
    assert part.crop.volume == other.volumes[0]
    assert part.crop.blank
    # one of several volumes is named
    both = dataclasses.replace(case, volumes=case.volumes + other.volumes)
    for number, ref in enumerate(both.volumes, start=1):
        arguments = {"slice": 6, "box": [0, 0, 500, 500], "volume": number}
        _, part = CropTool(Volume())(arguments, prompt(both, Volume()))
        assert part.crop.volume == ref


def test_a_crop_of_a_crop_stays_inside_it(case):
    view = Slices(slices=3)
    first = CropTool(view)({"slice": 6, "box": [500, 0, 1000, 1000]}, prompt(case, view))
    closer = dataclasses.replace(prompt(case, view), parts=first)
    _, part = CropTool(view)({"slice": 6, "box": [500, 0, 1000, 500]}, closer)
    assert part.crop.box_zyx == (6, 7, 0, 10, 30, 40)


@pytest.mark.parametrize(("start", "end", "shown"), TABLE["distances"])
def test_a_distance_is_measured_between_voxel_centres(case, start, end, shown):
    view = Slices(slices=3)
    arguments = {"slice": 6, "from": start, "to": end}
    assert Measure(view)(arguments, prompt(case, view)) == (TextPart(text=shown),)


HUGE = {"slice": 6, "box": [0, 0, 10**400, 9]}, "box must be a list of 4 numbers, got .0, 0, 1000"


@pytest.mark.parametrize(("arguments", "message"), [*TABLE["calls"], HUGE])
def test_a_bad_call_says_what_would_be_right(case, arguments, message):
    view = Slices(slices=3)
    with pytest.raises(ValueError, match=message):
        CropTool(view)(arguments, prompt(case, view))


def test_an_encoder_with_a_spacing_of_its_own_shows_no_crop_larger():
    view = Slices(slices=1)
    spaced = EncoderInput(size_zyx=(1, 64, 64), spacing_mm_zyx=(3.0, 0.8, 0.8), windows=())
    with pytest.raises(RecipeError, match=r"zoom: the encoder shows .* at a spacing of 3 x 0\.8 x 0\.8"):
        Zoom(view, spaced)
    assert Zoom(view, dataclasses.replace(spaced, spacing_mm_zyx=None))
