"""What grows in the organs: how dense and how large it is, where it is put, and what is true of it.

Facts are measured on the masks; they are what reports tell and queries ask.
"""

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import ndimage

from evidcore.case import Side
from evidcore_plugin_phantoms.abdomen.anatomy import Rng
from evidcore_plugin_phantoms.abdomen.scene import ORGANS, TABLES, Box, Scene, label_of
from evidcore_plugin_phantoms.shapes import Region, Triple

FEWEST_VOXELS = 8  # a lesion that shows in fewer is not labelled
TRIES = 40
Draws = np.ndarray[Any, np.dtype[np.float64]]  # from 0 to 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of lesion."""

    organ: str  # "kidney" stands for either
    malignant: bool
    diameter_mm: tuple[float, float]
    hu: tuple[float, float]
    over_organ: bool = False  # `hu` is the difference from the organ's
    fluid: bool = False
    sinks: bool = False  # lies where the patient lies on it


KINDS = {name: Kind(**row) for name, row in TABLES["lesions"].items()}
FINDINGS = tuple(KINDS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LesionSpec:
    """A lesion that a patient is to have."""

    finding: str
    organ: str
    diameter_mm: float
    lean: int = 1  # -1 the organ's half towards the patient's right, 1 towards the left


@dataclasses.dataclass(frozen=True, kw_only=True)
class LesionMask:
    """A lesion as it was drawn: its voxels within `box`."""

    finding: str
    organ: str
    box: Box
    region: Region


def grow(
    stream: Callable[[int, int], Rng],
    scene: Scene,
    wishes: tuple[LesionSpec, ...],
    *,
    without: str | None = None,
) -> list[LesionMask]:
    """Draw lesions into their organs, each where most of it fits; those that hardly show are left out.

    Those of the finding `without` keep their places and are not drawn. `stream` gives a lesion's own stream
    by the index of its finding and its number among them.
    """
    taken = np.zeros(scene.grid.size_zyx, np.bool_)
    grown, numbers = [], Counter[str]()
    for wish in wishes:
        rng = stream(FINDINGS.index(wish.finding), numbers[wish.finding])
        numbers[wish.finding] += 1
        draws = rng.random(TRIES)  # all that is drawn is drawn first: the same on every grid
        density, flat = rng.random(), rng.uniform(0.82, 1.0, 2)
        kind = KINDS[wish.finding]
        radius_mm = wish.diameter_mm / 2
        radii_mm = (radius_mm * flat[0], radius_mm * flat[1], radius_mm)
        room = scene.of(wish.organ) & ~taken
        spot = _best_place(draws, scene, room, wish, radii_mm)
        if spot is None:
            continue
        box, region = spot
        taken[box] |= ndimage.binary_dilation(region, np.ones((3, 3, 3)))  # and what touches it
        if wish.finding == without:
            continue
        low, high = kind.hu
        organ_hu = float(np.median(scene.hu[room])) if kind.over_organ else 0.0
        scene.hu[box][region] = low + density * (high - low) + organ_hu
        grown.append(LesionMask(finding=wish.finding, organ=wish.organ, box=box, region=region))
    return grown


def mirrored(each: LesionMask, width: int) -> LesionMask:
    """Return a lesion in a scene that was mirrored, `width` voxels wide."""
    z, y, x = each.box
    return dataclasses.replace(
        each,
        organ=other_side(each.organ),
        box=(z, y, slice(width - x.stop, width - x.start)),
        region=each.region[..., ::-1],
    )


def other_side(name: str) -> str:
    """Return a name with left and right exchanged."""
    return re.sub("left|right", lambda side: "right" if side[0] == "left" else "left", name)


def _best_place(
    draws: Draws, scene: Scene, room: Region, wish: LesionSpec, radii_mm: Triple
) -> tuple[Box, Region] | None:
    """Return the box where most of a lesion fits, with a voxel to spare, and its voxels; None if few do.

    Voxels of the half of the organ that the lesion leans to are tried as its centre.
    """
    z, y, x = (axis.reshape(-1) for axis in scene.grid.axes_mm)
    at = np.argwhere(room)
    if not len(at):
        return None
    half = (x[at[:, 2]] - np.median(x[at[:, 2]])) * wish.lean >= 0
    if KINDS[wish.finding].sinks:
        half &= y[at[:, 1]] >= np.median(y[at[:, 1]])
    at = at[half]
    reach_z, reach_y, reach_x = 1.3 * np.array(radii_mm) + scene.grid.step_mm_zyx
    best, best_share = None, 0.0
    for k, j, i in at[(draws * len(at)).astype(int)] if len(at) else ():
        centre = (float(z[k]), float(y[j]), float(x[i]))
        box = scene.grid.box(centre, (reach_z, reach_y, reach_x))
        whole = scene.grid.level(box, centre, radii_mm) < 1 + 0.08 * scene.unevenness[box]
        fits = whole & room[box]
        share = float(fits.sum()) / max(int(whole.sum()), 1)
        if share > best_share and fits.sum() >= FEWEST_VOXELS:
            best, best_share = (box, fits), share
    return best


def longest_mm(region: Region, spacing_mm_zyx: Triple) -> float:
    """Return a lesion's size as it is read from axial slices.

    It is the longest distance between the centres of two voxels of one slice, plus a voxel's width.
    """
    _, dy, dx = spacing_mm_zyx
    longest = 0.0
    for plane in region:
        rows = np.flatnonzero(plane.any(axis=1))
        if not rows.size:
            continue
        held = plane[rows]
        first, last = held.argmax(axis=1), held.shape[1] - 1 - held[:, ::-1].argmax(axis=1)
        # the two farthest voxels are ends of their rows
        y, x = np.tile(rows * dy, 2), np.concatenate([first, last]) * dx
        apart = np.square(y[:, None] - y) + np.square(x[:, None] - x)
        longest = max(longest, float(np.sqrt(apart.max())) + dx)
    return longest


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lesion:
    """One lesion; `mask` is its name among the case's masks."""

    mask: str
    finding: str
    organ: str
    side: Side | None  # of a kidney's lesions
    malignant: bool
    fluid: bool
    size_mm: float  # longest diameter in an axial slice
    volume_ml: float
    centre_mm: Triple  # z, y, x of the centroid, from the grid's middle, to superior, posterior, left


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    """The lesions of a phantom, and how large its organs are with them."""

    lesions: tuple[Lesion, ...]
    organs_ml: Mapping[str, float]
    mirrored: bool = False  # the liver is on the left

    def of(self, *organs: str) -> list[Lesion]:
        return [lesion for lesion in self.lesions if lesion.organ in organs]

    def of_finding(self, finding: str) -> list[Lesion]:
        return [lesion for lesion in self.lesions if lesion.finding == finding]


def measure(scene: Scene, grown: Sequence[LesionMask], *, mirrored: bool = False) -> Facts:
    """Measure what was drawn.

    A finding's only lesion has its name ("liver cyst"), several are numbered in the order in which they were
    drawn, which says nothing of size or place ("liver cyst 1").
    """
    spacing = scene.grid.spacing_mm_zyx
    voxel_ml = float(np.prod(spacing)) / 1000
    together, numbers = Counter(each.finding for each in grown), Counter[str]()
    lesions = []
    for each in grown:
        kind = KINDS[each.finding]
        numbers[each.finding] += 1
        number = f" {numbers[each.finding]}" if together[each.finding] > 1 else ""
        at = [
            float(axis.reshape(-1)[part][index].mean())
            for axis, part, index in zip(scene.grid.axes_mm, each.box, np.nonzero(each.region), strict=True)
        ]
        middle, scale = scene.grid.middle_mm, scene.grid.scale
        z, y, x = ((place - centre) * scale for place, centre in zip(at, middle, strict=True))
        lesions.append(
            Lesion(
                mask=each.finding + number,
                finding=each.finding,
                organ=each.organ,
                side=side_of(each.organ),
                malignant=kind.malignant,
                fluid=kind.fluid,
                size_mm=longest_mm(each.region, spacing),
                volume_ml=float(each.region.sum()) * voxel_ml,
                centre_mm=(z, y, x),
            )
        )
    voxels = np.bincount(scene.organs.reshape(-1), minlength=len(ORGANS) + 1)
    return Facts(
        lesions=tuple(lesions),
        organs_ml={organ: float(voxels[label_of(organ)]) * voxel_ml for organ in ORGANS},
        mirrored=mirrored,
    )


def without_side(organ: str) -> str:
    """Return an organ's name without its side."""
    return organ.removeprefix("left ").removeprefix("right ")


def side_of(organ: str) -> Side | None:
    """Return the side that an organ's name says."""
    word = organ.partition(" ")[0]
    return "left" if word == "left" else "right" if word == "right" else None
