"""Data set `phantom-slices`: one slice, one lesion, and a question that only a closer look answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import ndimage

from evidcore.api import Finding, MaskRef, Question
from evidcore.errors import RecipeError
from evidcore_plugin_phantoms.abdomen import anatomy
from evidcore_plugin_phantoms.abdomen.lesions import longest_mm, side_of, without_side
from evidcore_plugin_phantoms.abdomen.scene import ORGANS, Grid, label_of
from evidcore_plugin_phantoms.phantoms import Count, Drawn, Phantoms, noisy
from evidcore_plugin_phantoms.slices.patterns import (
    FINDING_OF,
    LARGEST_PX,
    PATTERNS,
    SIDE_PX,
    SMALLEST_PX,
    disc,
    shares,
)

LESION = "lesion"  # its mask, whatever its pattern
STEM = "Which pattern does the lesion have?"
SLICES = 2  # the same one twice: a volume has at least two voxels along each axis
SIZE_PX = 512  # of a slice, both ways
SPACING_MM_ZYX = (3.0, 0.8, 0.8)
FIELD_PX = (360, 480)  # the field of view of the abdominal phantoms, 288 x 384 mm; air around it
HEIGHT_MM = (24.0, 60.0)  # above the middle of the abdomen: through the liver, mostly through a kidney too
HOSTS = ("liver", "spleen", "left kidney", "right kidney", "pancreas")
CONTRAST_HU = (30.0, 50.0)  # by how much a lesion is darker than its organ, averaged over its disc
BORDER_PX = 8  # between a lesion and the border of its organ: an average over 8 x 8 pixels holds one of them
CUT_MARGIN_PX = 8  # between a lesion's middle and the edge of what is cut out around it
SMALLEST_CUT_PX = 32
BLUR_PX = 0.6  # standard deviation
NOISE_HU = 15.0
# streams of a phantom, and of a group of as many phantoms as there are patterns
ANATOMY, PLACE, NOISE, OTHER, PATTERN, LETTER, ORDER, CUT = range(8)

Plane = np.ndarray[Any, np.dtype[np.float32]]
Labels = np.ndarray[Any, np.dtype[np.uint8]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lesion:
    """Where a lesion lies, how large it is and how much it changes, whatever its pattern."""

    organ: str
    centre_yx: tuple[int, int]  # pixel of the slice
    offset_yx: tuple[float, float]  # of the disc's centre from that pixel's
    radius_px: float
    angle: float  # of stripes and dots, in radians
    sum_hu: float  # of the changes of all pixels, below 0


@dataclasses.dataclass(kw_only=True, eq=False)
class PhantomSlices(Phantoms):
    """Abdominal slices with one lesion each, whose pattern is lost where the slice is shown reduced 8 times.

    Volumes are one slice of 512 x 512 pixels of 0.8 mm in HU, stored twice, since a volume has at least two;
    `view = { use = "slices", slices = 1 }` shows it once. The lesion is solid, a ring, stripes or dots;
    each changes the slice by the same sum of HU and as far out, so that an overview of 64 x 64 pixels shows
    where the lesion is, and not what it is. Each pattern is as frequent as the others in every organ, and no
    text tells it. Masks are the organs, the lesion included ("liver"), and the lesion's disc, as "lesion" and
    under the name of the finding ("ring lesion"). `without` gives the same slice with the lesion in another
    pattern. The patients of the splits are drawn from separate random streams, so they are disjoint.

    Args:
        radius_px: the least and the largest radius of a lesion, within 4 to 5 pixels.
        cut_px: the least and the largest side of squares that are cut out of the slices around their
            lesions, which lie anywhere in them: pictures of all scales, as an encoder learns from that
            is to read overviews and crops. Empty: whole slices.
        annotated: training cases have findings and masks. Without, they have the slice and the question
            alone; the other splits, all slices and all questions stay as they are.

    Raises:
        RecipeError: if a radius or a side is out of its range; names it.
    """

    train_cases: Count = 1000
    validation_cases: Count = 100
    test_cases: Count = 300
    radius_px: tuple[float, float] = (SMALLEST_PX, LARGEST_PX)
    cut_px: tuple[()] | tuple[int, int] = ()
    annotated: bool = True

    findings = tuple(FINDING_OF.values())
    folder_name = "phantom-slices"
    asked = ("annotated",)

    def __post_init__(self) -> None:
        """Refuse what cannot be drawn or would leak; nothing is drawn before cases are asked for."""
        least, most = self.radius_px
        if not SMALLEST_PX <= least <= most <= LARGEST_PX:
            raise RecipeError(
                f"{self.folder_name}: radius_px must be two numbers that do not fall, from {SMALLEST_PX:g} "
                f"to {LARGEST_PX:g} pixels, got {list(self.radius_px)!r}. The pattern of a larger lesion can "
                f"be told where the slice is reduced 8 times; that of a smaller one cannot be drawn."
            )
        if self.cut_px and not SMALLEST_CUT_PX <= self.cut_px[0] <= self.cut_px[1] <= SIZE_PX:
            raise RecipeError(
                f"{self.folder_name}: cut_px must be empty or two numbers that do not fall, from "
                f"{SMALLEST_CUT_PX} to {SIZE_PX} pixels, got {list(self.cut_px)!r}."
            )

    @property
    def case_mb(self) -> float:
        """Return what a case takes on disk, in MB."""
        return SLICES * (self.cut_px[1] if self.cut_px else SIZE_PX) ** 2 * 2.1e-6

    def pattern(self, split: str, number: int) -> str:
        """Return a case's pattern: among each four cases of a split, from the first on, every one."""
        return PATTERNS[self.place_in_group(split, number, PATTERN)]

    def place_in_group(self, split: str, number: int, part: int) -> int:
        """Return a number from 0 to 3 that the case has alone in its group of four."""
        group, member = divmod(number, len(PATTERNS))
        return int(self.stream(split, group, part).permutation(len(PATTERNS))[member])

    def draw(self, split: str, number: int, *, without: str | None = None) -> Drawn:
        """Draw one slice; without its finding, the same one with the lesion in another pattern."""
        pattern = self.pattern(split, number)
        if without == FINDING_OF[pattern]:
            others = [each for each in PATTERNS if each != pattern]
            pattern = others[int(self.stream(split, number, OTHER).integers(len(others)))]
        hu, organs = healthy_slice(self.stream(split, number, ANATOMY))
        lesion = draw_lesion(self.stream(split, number, PLACE), organs, self.radius_px)
        region = add(hu, lesion, pattern)
        ndimage.gaussian_filter(hu, BLUR_PX, output=hu)
        size_mm = longest_mm(region[None].astype(np.bool_), SPACING_MM_ZYX)
        scanned = noisy(hu, NOISE_HU, self.stream(split, number, NOISE))
        if self.cut_px:
            part = draw_cut(self.stream(split, number, CUT), lesion.centre_yx, self.cut_px)
            scanned, organs, region = scanned[part], organs[part], region[part]
        return Drawn(
            hu=np.repeat(scanned[None], SLICES, axis=0),
            spacing_mm_zyx=SPACING_MM_ZYX,
            arrays={
                "organs": np.repeat(organs[None], SLICES, axis=0),
                "lesion": np.repeat(region[None], SLICES, axis=0),
            },
            known={
                "pattern": pattern,
                "organ": lesion.organ,
                "side": side_of(lesion.organ),
                "size_mm": size_mm,
                "organs": [organ for organ in ORGANS if (organs == label_of(organ)).any()],
            },
        )

    def parts(self, split: str, known: Sequence[Mapping[str, Any]], paths: Sequence[str]) -> Iterator[Any]:
        """Yield findings, masks and question of each case; among four, the right option has each letter."""
        for number, (facts, path) in enumerate(zip(known, paths, strict=True)):
            pattern = facts["pattern"]
            answer = self.place_in_group(split, number, LETTER)
            rng = self.stream(split, number, ORDER)
            options = [str(each) for each in rng.permutation([each for each in PATTERNS if each != pattern])]
            options.insert(answer, pattern)
            question = Question(
                id="pattern",
                text=STEM,
                options=tuple(options),
                answer=answer,
                true_options=(answer,),
                kind=FINDING_OF[pattern],
            )
            fields: dict[str, Any] = {"questions": (question,)}
            if self.annotated or split != "train":
                fields["findings"] = tuple(
                    Finding(
                        name=name,
                        side=facts["side"],
                        size_mm=facts["size_mm"],
                        location=without_side(facts["organ"]),
                    )
                    if name == FINDING_OF[pattern]
                    else Finding(name=name, state="absent")
                    for name in FINDING_OF.values()
                )
                lesion = MaskRef(path=path, key="lesion")
                organs = {
                    organ: MaskRef(path=path, key="organs", label=label_of(organ))
                    for organ in facts["organs"]
                }
                fields["masks"] = organs | {LESION: lesion, FINDING_OF[pattern]: lesion}
            yield fields


def healthy_slice(rng: np.random.Generator) -> tuple[Plane, Labels]:
    """Draw a slice without a lesion: HU and labels of organs, each (y, x), 512 x 512 pixels."""
    grid = Grid((1, *FIELD_PX), middle_mm=(rng.uniform(*HEIGHT_MM), 0.0, 0.0))
    drawn = anatomy.healthy(rng, grid, anatomy.draw_tissue(rng))
    around = [((SIZE_PX - size) // 2,) * 2 for size in FIELD_PX]
    return np.pad(drawn.hu[0], around, constant_values=anatomy.AIR_HU), np.pad(drawn.organs[0], around)


def draw_lesion(rng: np.random.Generator, organs: Labels, radius_px: tuple[float, float]) -> Lesion:
    """Draw a lesion's place in one of the organs that have room for it, each as likely as the others.

    Args:
        rng: the lesion's own stream.
        organs: labels, shape (y, x).
        radius_px: the least and the largest radius.

    Raises:
        ValueError: if no organ has room; names the distance from the border that it needs.
    """
    radius, contrast_hu = rng.uniform(*radius_px), rng.uniform(*CONTRAST_HU)
    offset, angle, share = rng.uniform(-0.5, 0.5, 2), rng.uniform(0, 2 * np.pi), rng.random()
    reach_px = radius + BORDER_PX
    boxes = ndimage.find_objects(organs, len(ORGANS))
    for organ in rng.permutation(HOSTS):
        box = boxes[label_of(organ) - 1]
        if box is None:
            continue
        rows, columns = (slice(part.start - 1, part.stop + 1) for part in box)  # and what is around
        inside = organs[rows, columns] == label_of(organ)
        room = np.argwhere(ndimage.distance_transform_edt(inside) > reach_px)
        if len(room):
            y, x = room[int(share * len(room))] + (rows.start, columns.start)
            return Lesion(
                organ=str(organ),
                centre_yx=(int(y), int(x)),
                offset_yx=(float(offset[0]), float(offset[1])),
                radius_px=radius,
                angle=angle,
                sum_hu=-contrast_hu * np.pi * radius**2,
            )
    raise ValueError(f"no organ has a pixel {reach_px:.1f} pixels inside its border, looked in {HOSTS}")


def draw_cut(
    rng: np.random.Generator, centre_yx: tuple[int, int], side_px: tuple[int, int]
) -> tuple[slice, slice]:
    """Draw a square around a lesion, which lies anywhere in it and not at its edge.

    The logarithm of its side is uniform between the least and the largest, `side_px`.
    """
    least, most = side_px
    side = min(round(least * (most / least) ** rng.random()), most)
    places = rng.integers(CUT_MARGIN_PX, side - CUT_MARGIN_PX, 2)
    y, x = (int(np.clip(at - place, 0, SIZE_PX - side)) for at, place in zip(centre_yx, places, strict=True))
    return slice(y, y + side), slice(x, x + side)


def add(hu: Plane, lesion: Lesion, pattern: str) -> Labels:
    """Draw a lesion into a slice, shape (y, x); return its disc, 1 inside, in that shape."""
    start_y, start_x = (at - SIDE_PX // 2 for at in lesion.centre_yx)
    box = slice(start_y, start_y + SIDE_PX), slice(start_x, start_x + SIDE_PX)
    drawn = shares(pattern, lesion.radius_px, lesion.offset_yx, lesion.angle)
    hu[box] += (lesion.sum_hu * drawn).astype(np.float32)
    region = np.zeros(hu.shape, np.uint8)
    region[box] = disc(lesion.radius_px, lesion.offset_yx)
    return region
