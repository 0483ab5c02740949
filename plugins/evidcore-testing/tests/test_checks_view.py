import dataclasses
import itertools

import pytest
from evidcore_testing import check_view, volume_case

from evidcore.api import Box, Crop, EncoderInput, TextPart, View, VisualPart, VolumeRef

ENCODER = EncoderInput(
    size_zyx=(8, 16, 16), spacing_mm_zyx=None, windows=((-1000.0, 400.0), (-160.0, 240.0)), any_depth=True
)
BOXES = {(0, 0, 100, 100): (0.0, 1.0, 0.0, 1.0), (0, 50, 25, 100): (0.5, 1.0, 0.0, 0.25)}
OUTSIDE = [(0, 0, 101, 10), (-1, 0, 5, 5)]


class TwoSlices(View):
    """Slices 3 and 7 of 16 x 16 voxels, each behind its index; boxes are x0, y0, x1, y1 in percent."""

    tags_slices = True

    def render(self, case):
        parts = []
        for z in (3, 7):
            crop = Crop(volume=case.volumes[0], box_zyx=(z, z + 1, 0, 16, 0, 16))
            parts += [TextPart(text=f"slice {z}:"), VisualPart(crop=crop)]
        return tuple(parts)

    def size_zyx(self, part, encoder):
        return (1, *encoder.size_zyx[1:])

    def to_source(self, part, box):
        if not all(0 <= edge <= 100 for edge in box):
            raise ValueError(f"{box} is not in 0..100")
        x0, y0, x1, y1 = (round(edge * 16 / 100) for edge in box)
        return Box(z=part.crop.box_zyx[0], y0=y0, y1=y1, x0=x0, x1=x1)


class Whole(View):
    """The whole volume, on which no box has a slice."""

    def render(self, case):
        return (VisualPart(crop=Crop(volume=case.volumes[0])),)

    def size_zyx(self, part, encoder):
        return encoder.size_zyx

    def to_source(self, part, box):
        return None


def mutant(**members):
    return type("Mutant", (TwoSlices,), members)


def showing(render):
    return mutant(render=lambda self, case: render(case, TwoSlices.render(self, case)))


def placing(change):
    return mutant(to_source=lambda self, part, box: change(TwoSlices.to_source(self, part, box)))


def elsewhere(case, parts):
    return TwoSlices().render(dataclasses.replace(case, volumes=(VolumeRef(path="other.nii.gz"),)))


def too_wide(case, parts):
    return (parts[0], VisualPart(crop=dataclasses.replace(parts[1].crop, box_zyx=(3, 4, 0, 16, 0, 17))))


def flipped(box):
    return dataclasses.replace(box, y0=box.x0, y1=box.x1, x0=box.y0, x1=box.y1)


COUNT = itertools.count()
MUTANTS = {
    r"Mutant breaks its contract: a case is shown by at least one visual part. got \(TextPart": showing(
        lambda case, parts: parts[:1]
    ),
    "a case is shown twice the same. not so for 'case-0'": showing(
        lambda case, parts: (TextPart(text=f"look {next(COUNT)}"), *parts)
    ),
    r"inside the case's own volumes. got 'other\.nii\.gz#.*' for case 'case-0'": showing(elsewhere),
    r"inside the case's own volumes. got \(3, 4, 0, 16, 0, 17\) in a volume of \(12, 16, 16\)": showing(
        too_wide
    ),
    "the text before each slice names its index. slice 3 comes after 'slice 0:'": showing(
        lambda case, parts: (TextPart(text="slice 0:"), *parts[1:])
    ),
    r"an encoder is given the size that is announced. got \(0, 16, 16\)": mutant(
        size_zyx=lambda self, part, encoder: (0, 16, 16)
    ),
    r"the size that is announced. got \(1, 24, 24\), the encoder takes \(8, 16, 16\)": mutant(
        size_zyx=lambda self, part, encoder: (1, 24, 24)
    ),
    r"boxes come back as voxels.* \(0, 50, 25, 100\) gave Box.*, off by 12\.0 voxels": placing(flipped),
    r"voxels come back as boxes. Box.* became \(0, 0, 100, 100\), then Box": mutant(
        from_source=lambda self, part, box: (0, 0, 100, 100)
    ),
    "boxes come back as voxels.* no box has a place on slice 3": placing(lambda box: None),
    r"a box outside raises a ValueError. \(0, 0, 101, 10\) was accepted": mutant(
        to_source=lambda self, part, box: TwoSlices.to_source(self, part, [min(edge, 100) for edge in box])
    ),
}


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    return volume_case(tmp_path_factory.mktemp("case"))


@pytest.mark.parametrize("sound", [TwoSlices, Whole])
def test_a_sound_view_passes(sound, case):
    check_view(sound(), case, ENCODER, boxes=BOXES, outside=OUTSIDE)


@pytest.mark.parametrize("message", MUTANTS)
def test_a_view_that_breaks_a_clause_is_caught(message, case):
    with pytest.raises(AssertionError, match=message):
        check_view(MUTANTS[message](), case, ENCODER, boxes=BOXES, outside=OUTSIDE)


def test_an_encoder_of_fixed_depth_is_not_given_slices(case):
    fixed = dataclasses.replace(ENCODER, any_depth=False)
    with pytest.raises(AssertionError, match=r"got \(1, 16, 16\), the encoder takes \(8, 16, 16\)"):
        check_view(TwoSlices(), case, fixed, boxes=BOXES, outside=OUTSIDE)
