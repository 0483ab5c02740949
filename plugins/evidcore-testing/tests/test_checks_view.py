import dataclasses
import itertools

import pytest
from evidcore_testing import check_view
from mutants import altered, caught, changing

from evidcore.api import Box, EncoderInput, TextPart, VolumeRef
from evidcore.builtin.views import Slices, Volume

ENCODER = EncoderInput(
    size_zyx=(8, 16, 16), spacing_mm_zyx=None, windows=((-1000.0, 400.0), (-160.0, 240.0)), any_depth=True
)
BOXES = {(0, 0, 1000, 1000): (0.0, 1.0, 0.0, 1.0), (0, 500, 250, 1000): (0.5, 1.0, 0.0, 0.25)}
OUTSIDE = [(0, 0, 1001, 10), (-1, 0, 5, 5)]
COUNT = itertools.count()


def sized(*size):
    return altered(Slices, size_zyx=lambda self, part, encoder: size)


def elsewhere(self, case):
    return Volume.render(self, dataclasses.replace(case, volumes=(VolumeRef(path="other.nii.gz"),)))


def too_wide(parts):
    return parts[0], dataclasses.replace(
        parts[1], crop=dataclasses.replace(parts[1].crop, box_zyx=(3, 4, 0, 16, 0, 17))
    )


def flipped(box):
    return Box(z=box.z, y0=box.x0, y1=box.x1, x0=box.y0, x1=box.y1)


def clipped(self, part, box):
    return Slices.to_source(self, part, [min(edge, 1000) for edge in box])


SIZE, PLACES = (
    "an encoder is given the size that is announced.",
    "boxes come back as voxels of what was shown.",
)
MUTANTS = {
    r"at least one visual part. got \(TextPart": changing(Slices, "render", lambda parts: parts[:1]),
    "a case is shown twice the same. not so for 'case-0'": changing(
        Slices, "render", lambda parts: (TextPart(text=f"look {next(COUNT)}"), *parts)
    ),
    r"the case's own volumes. got 'other\.nii\.gz#.*' for case 'case-0'": altered(Volume, render=elsewhere),
    r"own volumes. got \(3, 4, 0, 16, 0, 17\) in a volume of \(12, 16, 16\)": changing(
        Slices, "render", too_wide
    ),
    "names its index. slice 3 comes after 'slice 0:'": changing(
        Slices, "render", lambda parts: (TextPart(text="slice 0:"), *parts[1:])
    ),
    rf"{SIZE} got \(0, 16, 16\)": sized(0, 16, 16),
    rf"{SIZE} got \(1, 24, 24\), the encoder takes \(8, 16, 16\)": sized(1, 24, 24),
    rf"{PLACES} \(0, 500, 250, 1000\) gave Box.*, off by 12\.0 voxels": changing(
        Slices, "to_source", flipped
    ),
    f"{PLACES} no box has a place on slice 3": changing(Slices, "to_source", lambda box: None),
    r"voxels come back as boxes. Box.* became \(0, 0, 1000, 1000\), then Box": changing(
        Slices, "from_source", lambda box: (0, 0, 1000, 1000)
    ),
    r"a box outside raises a ValueError. \(0, 0, 1001, 10\) was accepted": altered(Slices, to_source=clipped),
}


def check(view, cases, encoder=ENCODER):
    check_view(view, cases[0], encoder, boxes=BOXES, outside=OUTSIDE)


@pytest.mark.parametrize("view", [Slices(slices=2), Volume()])
def test_a_sound_view_passes(view, cases):
    check(view, cases)


@pytest.mark.parametrize("message", MUTANTS)
def test_a_view_that_breaks_a_clause_is_caught(message, cases):
    view = MUTANTS[message]()
    view.slices = 2
    with caught(message):
        check(view, cases)


def test_an_encoder_of_fixed_depth_is_not_given_slices(cases):
    with caught(r"got \(1, 16, 16\), the encoder takes \(8, 16, 16\)"):
        check(sized(1, 16, 16)(), cases, dataclasses.replace(ENCODER, any_depth=False))
