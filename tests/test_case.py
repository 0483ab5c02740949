"""What plain data refuses, and the strings that stand for pixels on their way through trainers."""

import pytest

from evidcore.case import Case, Crop, Drawing, MaskRef, Query, VolumeRef

REFS = [
    VolumeRef(path="a b/scan#1.nii.gz"),
    VolumeRef(
        path="x.npz", intensity="arbitrary", key="ct & more=1", spacing_mm_zyx=(0.8, 0.8, 0.1), axes="SPL"
    ),
    VolumeRef(path="series", key="1.2.840.1", rescale=(1.0, -1024.0), tilted="resample"),
]


@pytest.mark.parametrize("ref", REFS)
@pytest.mark.parametrize("box", [None, (1, 2, 0, 30, 4, 40)])
def test_a_crop_survives_the_way_through_its_uri(ref, box):
    crop = Crop(volume=ref, box_zyx=box, blank=box is None, change="scrambled" if box else "")
    assert Crop.parse_uri(crop.uri()) == crop


DRAWINGS = {
    "slices-3": Drawing(kind="slices", slices=(3,)),
    "slices-3,0,12": Drawing(kind="slices", slices=(3, 0, 12)),
    "tiles-2,0,5,9": Drawing(kind="tiles", slices=(0, 5, 9), columns=2),
    "mean-y": Drawing(kind="mean", axis="y"),
    "attenuation-x": Drawing(kind="attenuation", axis="x"),
    "picture-": Drawing(kind="picture"),
}


@pytest.mark.parametrize("mark", DRAWINGS)
def test_a_drawing_survives_the_way_through_a_uri(mark):
    drawing = DRAWINGS[mark]
    assert drawing.mark() == mark
    crop = Crop(volume=REFS[0], drawing=drawing)
    assert Crop.parse_uri(crop.uri()) == crop
    assert Crop.parse_uri(Crop(volume=REFS[0]).uri()).drawing is None


def test_a_part_of_what_is_drawn_is_drawn_anew_but_of_a_photograph():
    for drawing in DRAWINGS.values():
        part = Crop(volume=REFS[0], blank=True, drawing=drawing).cut((1, 2, 0, 3, 0, 4))
        kept = drawing if drawing.kind == "picture" else None
        assert part == Crop(volume=REFS[0], blank=True, drawing=kept, box_zyx=(1, 2, 0, 3, 0, 4))


def test_a_query_that_means_nothing_or_something_else_is_refused():
    with pytest.raises(ValueError, match="query 'q1' must name the masks that answer it, got none"):
        Query(id="q1", text="Show it.", masks=())
    with pytest.raises(ValueError, match=r"query 'q2' means \('liver',\), which must be among \('spleen',\)"):
        Query(id="q2", text="Show it.", masks=("liver",), among=("spleen",))
    assert Query(id="q3", text="Show it.", masks=("liver",)).among == ()


def test_a_predicted_mask_is_never_among_the_true_ones():
    masks = {"liver": MaskRef(path="a.npz", by="sam3")}
    with pytest.raises(
        ValueError, match=r"case 'c': mask 'liver' was predicted by 'sam3', and masks count as"
    ):
        Case(id="c", patient="p", volumes=(), masks=masks)
    assert Case(id="c", patient="p", volumes=(), predicted=masks).regions == masks


NO_DRAWINGS = (
    "collage-1,2", "slices-", "tiles-4", "tiles-0,1", "mean-z", "mean-", "picture-1", "slices-1,b", "mean-1",
)  # fmt: skip


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("scan.nii", "not a crop: 'scan.nii'"),
        ("scan.nii#box=1,2", "not parameters of a volume: {'box': '1,2'}"),
        ("scan.nii#intensity=suv", "not parameters of a volume: {'intensity': 'suv'}"),
        ("scan.nii#intensity=hu&tilted=bend", "'tilted': 'bend'"),
        ("scan.nii#intensity=hu&rescale=1", "expected 2 numbers, got '1'"),
        ("scan.nii#intensity=hu&box=1,a", "invalid literal for int"),
        *((f"scan.nii#intensity=hu&drawing={mark}", f"drawing={mark}' (") for mark in NO_DRAWINGS),
    ],
)
def test_another_string_is_refused(uri, says):
    with pytest.raises(ValueError, match="not a crop") as error:
        Crop.parse_uri(uri)
    assert says in str(error.value)
