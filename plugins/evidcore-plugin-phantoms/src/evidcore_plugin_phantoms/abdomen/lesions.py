"""What grows in the organs: how dense and how large it is, where it is put, and how it is measured."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from evidcore_plugin_phantoms.abdomen.anatomy import Rng
from evidcore_plugin_phantoms.abdomen.scene import Box, Scene
from evidcore_plugin_phantoms.shapes import Region, Triple

FEWEST_VOXELS = 8  # a lesion that shows in fewer is not labelled
TRIES = 40


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

    def density_hu(self, share: float, organ_hu: float) -> float:
        """Return the density at `share` of the range, from 0 to 1."""
        low, high = self.hu
        return low + share * (high - low) + (organ_hu if self.over_organ else 0.0)


KINDS: dict[str, Kind] = {
    "liver cyst": Kind(organ="liver", malignant=False, diameter_mm=(16, 45), hu=(0, 14), fluid=True),
    "liver metastasis": Kind(
        organ="liver", malignant=True, diameter_mm=(16, 45), hu=(-58, -44), over_organ=True
    ),
    "liver haemangioma": Kind(
        organ="liver", malignant=False, diameter_mm=(16, 45), hu=(46, 64), over_organ=True
    ),
    "kidney cyst": Kind(organ="kidney", malignant=False, diameter_mm=(15, 34), hu=(0, 16), fluid=True),
    "kidney tumour": Kind(
        organ="kidney", malignant=True, diameter_mm=(15, 34), hu=(-100, -70), over_organ=True
    ),
    "splenic cyst": Kind(organ="spleen", malignant=False, diameter_mm=(15, 34), hu=(0, 14), fluid=True),
    "splenic metastasis": Kind(
        organ="spleen", malignant=True, diameter_mm=(15, 34), hu=(-66, -48), over_organ=True
    ),
    "pancreatic cyst": Kind(organ="pancreas", malignant=False, diameter_mm=(14, 24), hu=(2, 16), fluid=True),
    "pancreatic tumour": Kind(
        organ="pancreas", malignant=True, diameter_mm=(14, 24), hu=(-56, -44), over_organ=True
    ),
    "gallstone": Kind(organ="gallbladder", malignant=False, diameter_mm=(11, 18), hu=(250, 800), sinks=True),
}
FINDINGS = tuple(KINDS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wish:
    """A lesion that a patient is to have."""

    finding: str
    organ: str
    diameter_mm: float
    lean: int = 1  # -1 the organ's half towards the patient's right, 1 towards the left


@dataclasses.dataclass(frozen=True, kw_only=True)
class Grown:
    """A lesion as it was drawn: its voxels within `box`."""

    finding: str
    organ: str
    box: Box
    region: Region


def grow(
    stream: Callable[[int, int], Rng], scene: Scene, wishes: tuple[Wish, ...], *, without: str | None = None
) -> list[Grown]:
    """Draw lesions into their organs, each where most of it fits; those that hardly show are left out.

    Args:
        stream: gives a lesion's own stream by the index of its finding and its number among them.
        scene: the organs.
        wishes: what is to grow.
        without: a finding whose lesions keep their places and are not drawn.
    """
    taken = np.zeros(scene.grid.size_zyx, np.bool_)
    grown, numbers = [], Counter[str]()
    for wish in wishes:
        rng = stream(FINDINGS.index(wish.finding), numbers[wish.finding])
        numbers[wish.finding] += 1
        dice = rng.random(TRIES)  # all that is drawn is drawn first: the same on every grid
        density, flat = rng.random(), rng.uniform(0.82, 1.0, 2)
        kind = KINDS[wish.finding]
        radius_mm = wish.diameter_mm / 2
        radii_mm = (radius_mm * flat[0], radius_mm * flat[1], radius_mm)
        room = scene.of(wish.organ) & ~taken
        spot = _best(_centres(dice, scene, room, wish), radii_mm, scene, room)
        if spot is None:
            continue
        box, region = spot
        taken[box] |= _with_neighbours(region)
        if wish.finding == without:
            continue
        scene.hu[box][region] = kind.density_hu(density, float(np.median(scene.hu[room])))
        grown.append(Grown(finding=wish.finding, organ=wish.organ, box=box, region=region))
    return grown


def mirrored(each: Grown, width: int) -> Grown:
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


def _centres(
    dice: np.ndarray[Any, np.dtype[np.float64]], scene: Scene, room: Region, wish: Wish
) -> list[Triple]:
    """Choose voxels in the half of the organ that the lesion leans to."""
    z, y, x = (axis.reshape(-1) for axis in scene.grid.axes_mm)
    at = np.argwhere(room)
    if not len(at):
        return []
    half = (x[at[:, 2]] - np.median(x[at[:, 2]])) * wish.lean >= 0
    if KINDS[wish.finding].sinks:
        half &= y[at[:, 1]] >= np.median(y[at[:, 1]])
    at = at[half]
    chosen = at[(dice * len(at)).astype(int)] if len(at) else at
    return [(float(z[k]), float(y[j]), float(x[i])) for k, j, i in chosen]


def _best(centres: list[Triple], radii_mm: Triple, scene: Scene, room: Region) -> tuple[Box, Region] | None:
    """Return the place where most of a lesion fits: its box, with a voxel to spare, and its voxels."""
    best, best_share = None, 0.0
    z, y, x = (1.3 * radius + step for radius, step in zip(radii_mm, scene.grid.step_mm_zyx, strict=True))
    for centre in centres:
        box = scene.grid.box(centre, (z, y, x))
        level = scene.grid.level(box, centre, radii_mm)
        whole = level < 1 + 0.08 * scene.unevenness[box]
        fits = whole & room[box]
        share = float(fits.sum()) / max(int(whole.sum()), 1)
        if share > best_share and fits.sum() >= FEWEST_VOXELS:
            best, best_share = (box, fits), share
    return best


def _with_neighbours(region: Region) -> Region:
    """Return a region with the voxels that touch it, by a corner at least."""
    wide = region.copy()
    for axis in range(3):
        along = np.moveaxis(wide, axis, 0)
        before = along.copy()
        along[1:] |= before[:-1]
        along[:-1] |= before[1:]
    return wide


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
