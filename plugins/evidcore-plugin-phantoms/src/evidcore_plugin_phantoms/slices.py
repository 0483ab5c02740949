"""Data set `phantom-slices`: one slice, one lesion, and a question that only a closer look answers.

What tells the four patterns of a lesion apart is finer than 8 pixels. Averaging over 8 x 8 pixels keeps how
much a lesion changes and, where the edge of an average cuts through it, how far out it does so. So each
pattern has the same sum, and the same second moment as a disc of its radius, r² / 4 along every axis: the
sizes below are shares of the radius that give it. Centre and angle are drawn for each lesion, so that no
pattern has a place of its own among the averages.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from scipy import ndimage

from evidcore.api import Finding, MaskRef, Question
from evidcore.case import Side
from evidcore.errors import RecipeError
from evidcore_plugin_phantoms.abdomen import anatomy
from evidcore_plugin_phantoms.abdomen.lesions import longest_mm, side_of, without_side
from evidcore_plugin_phantoms.abdomen.scene import ORGANS, Grid, label_of
from evidcore_plugin_phantoms.phantoms import Count, Drawn, Phantoms, noisy

# each pattern with the finding that has it
FINDING_OF = dict(solid="solid lesion", ring="ring lesion", stripes="striped lesion", dots="dotted lesion")
PATTERNS = tuple(FINDING_OF)
LARGEST_PX = 5.0  # in radius; at 6 the best reader of averages over 8 x 8 pixels is right in 36 of 100
SMALLEST_PX = 4.0  # in radius; smaller ones have stripes and gaps of about a pixel, which the blur takes
RING = (0.40, 0.92)  # inner and outer radius
STRIPES = (-0.63, 0.0, 0.63)  # their middles; as far as the disc reaches
STRIPE_WIDTH = 0.31
DOTS = ((0.0, 0.0), *((0.75 * np.cos(turn), 0.75 * np.sin(turn)) for turn in np.arange(6) * np.pi / 3))
DOT_RADIUS = 0.20
SIDE_PX = 19  # of a drawn pattern: a radius of 8, above what is offered, its centre half a pixel off
FINER = 8  # points of a pixel along each axis

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
Shares = np.ndarray[Any, np.dtype[np.float64]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lesion:
    """Where a lesion lies, how large it is and how much it changes, whatever its pattern."""

    organ: str
    centre_yx: tuple[int, int]  # pixel of the slice
    offset_yx: tuple[float, float]  # of the disc's centre from that pixel's
    radius_px: float
    angle: float  # of stripes and dots, in radians
    sum_hu: float  # of the changes of all pixels, below 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class DescribedSlice:
    """What is known of a slice."""

    pattern: str
    side: Side | None
    organ: str  # where the lesion is, without its side
    size_mm: float  # of the lesion
    organs: tuple[str, ...]  # that it shows


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
    known_as = DescribedSlice

    def __post_init__(self) -> None:
        """Refuse what cannot be drawn or would leak; nothing is drawn before cases are asked for."""
        least, most = self.radius_px
        if not SMALLEST_PX <= least <= most <= LARGEST_PX:
            must = f"must be two numbers that do not fall, from {SMALLEST_PX:g} to {LARGEST_PX:g} pixels"
            why = "The pattern of a larger lesion can be told where the slice is reduced 8 times"
            more = f"{why}; that of a smaller one cannot be drawn"
            raise RecipeError(f"{self.folder_name}: radius_px {must}, got {list(self.radius_px)!r}. {more}.")
        if self.cut_px and not SMALLEST_CUT_PX <= self.cut_px[0] <= self.cut_px[1] <= SIZE_PX:
            must = (
                f"must be empty or two numbers that do not fall, from {SMALLEST_CUT_PX} to {SIZE_PX} pixels"
            )
            raise RecipeError(f"{self.folder_name}: cut_px {must}, got {list(self.cut_px)!r}.")

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
            # a square around the lesion, which lies anywhere in it and not at its edge
            rng, (least, most) = self.stream(split, number, CUT), self.cut_px
            side = min(round(least * (most / least) ** rng.random()), most)  # its logarithm is uniform
            places = rng.integers(CUT_MARGIN_PX, side - CUT_MARGIN_PX, 2)
            first = [int(at - place) for at, place in zip(lesion.centre_yx, places, strict=True)]
            y, x = np.clip(first, 0, SIZE_PX - side).tolist()
            part = slice(y, y + side), slice(x, x + side)
            scanned, organs, region = scanned[part], organs[part], region[part]
        return Drawn(
            hu=np.repeat(scanned[None], SLICES, axis=0),
            spacing_mm_zyx=SPACING_MM_ZYX,
            arrays={
                "organs": np.repeat(organs[None], SLICES, axis=0),
                "lesion": np.repeat(region[None], SLICES, axis=0),
            },
            known=DescribedSlice(
                pattern=pattern,
                side=side_of(lesion.organ),
                organ=without_side(lesion.organ),
                size_mm=size_mm,
                organs=tuple(organ for organ in ORGANS if (organs == label_of(organ)).any()),
            ),
        )

    def parts(
        self, split: str, known: Sequence[DescribedSlice], paths: Sequence[str]
    ) -> Iterator[dict[str, Any]]:
        """Yield findings, masks and question of each case; among four, the right option has each letter."""
        for number, (facts, path) in enumerate(zip(known, paths, strict=True)):
            shown = FINDING_OF[facts.pattern]
            answer = self.place_in_group(split, number, LETTER)
            others = [pattern for pattern in PATTERNS if pattern != facts.pattern]
            texts = [str(each) for each in self.stream(split, number, ORDER).permutation(others)]
            texts.insert(answer, facts.pattern)
            question = Question(
                id="pattern", text=STEM, options=(*texts,), answer=answer, true_options=(answer,), kind=shown
            )
            fields: dict[str, Any] = {"questions": (question,)}
            if self.annotated or split != "train":
                findings = {name: Finding(name=name, state="absent") for name in FINDING_OF.values()}
                findings[shown] = Finding(
                    name=shown, side=facts.side, size_mm=facts.size_mm, location=facts.organ
                )
                fields["findings"] = tuple(findings.values())
                labels = {organ: label_of(organ) for organ in facts.organs}
                masks = {organ: MaskRef(path=path, key="organs", label=at) for organ, at in labels.items()}
                fields["masks"] = masks | dict.fromkeys((LESION, shown), MaskRef(path=path, key="lesion"))
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


def add(hu: Plane, lesion: Lesion, pattern: str) -> Labels:
    """Draw a lesion into a slice, shape (y, x); return its disc, 1 inside, in that shape."""
    start_y, start_x = (at - SIDE_PX // 2 for at in lesion.centre_yx)
    box = slice(start_y, start_y + SIDE_PX), slice(start_x, start_x + SIDE_PX)
    drawn = shares(pattern, lesion.radius_px, lesion.offset_yx, lesion.angle)
    hu[box] += (lesion.sum_hu * drawn).astype(np.float32)
    region = np.zeros(hu.shape, np.uint8)
    region[box] = disc(lesion.radius_px, lesion.offset_yx)
    return region


def shares(pattern: str, radius_px: float, offset_yx: tuple[float, float], angle: float) -> Shares:
    """Return what each pixel has of a lesion, shape (y, x), 19 x 19 pixels; the sum is 1.

    Args:
        pattern: one of `PATTERNS`.
        radius_px: of the disc in which the pattern lies, at most 8.
        offset_yx: of the disc's centre from the middle pixel's, in pixels, at most 0.5 either way.
        angle: by which stripes and dots are turned, in radians.
    """
    y, x = _points(offset_yx, radius_px)
    u, v = x * np.cos(angle) + y * np.sin(angle), y * np.cos(angle) - x * np.sin(angle)
    distance = np.hypot(y, x)
    if pattern == "solid":
        region = distance <= 1
    elif pattern == "ring":
        region = (distance > RING[0]) & (distance <= RING[1])
    elif pattern == "stripes":
        beside = np.min([np.abs(u - middle) for middle in STRIPES], axis=0)
        region = (beside <= STRIPE_WIDTH / 2) & (distance <= 1)
    else:
        region = np.min([np.hypot(u - at_u, v - at_v) for at_u, at_v in DOTS], axis=0) <= DOT_RADIUS
    covered = _averaged(region)
    return np.asarray(covered / covered.sum())


def disc(radius_px: float, offset_yx: tuple[float, float]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return the pixels that the disc of a lesion covers by half, shape (y, x), 19 x 19 pixels."""
    return np.asarray(_averaged(np.hypot(*_points(offset_yx, radius_px)) <= 1) >= 0.5)


def _points(offset_yx: tuple[float, float], radius_px: float) -> tuple[Shares, Shares]:
    """Return how far points finer than pixels lie from the centre, in radii, shapes (y, 1) and (1, x)."""
    at = (np.arange(SIDE_PX * FINER) + 0.5) / FINER - SIDE_PX / 2
    return (at - offset_yx[0])[:, None] / radius_px, (at - offset_yx[1])[None, :] / radius_px


def _averaged(region: np.ndarray[Any, np.dtype[np.bool_]]) -> Shares:
    return np.asarray(region.reshape(SIDE_PX, FINER, SIDE_PX, FINER).mean(axis=(1, 3)), dtype=np.float64)
