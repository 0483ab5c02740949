"""The chest of one phantom, drawn in HU on its grid: the organs, and the pen that signs are drawn with."""

import dataclasses
import functools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from evidcore_plugin_phantoms import shapes
from evidcore_plugin_phantoms.shapes import Region, Triple, Volume

Point = np.ndarray[Any, np.dtype[np.float64]]  # z, y, x in voxels
Choices = dict[tuple[int, int], int]  # by sign and its number of choices so far

SIZE_ZYX = (32, 64, 64)
SPACING_MM_ZYX = (10.0, 5.5, 5.5)
AIR_HU, LUMEN_HU, LUNG_HU, FAT_HU, MUSCLE_HU, BLOOD_HU = -1000.0, -970.0, -850.0, -100.0, 40.0, 45.0
RIGHT, LEFT = 0, 1
TABLE_HU = 70.0
TABLE_ROWS = (61.0, 63.0)  # of its upper side
TABLE_HALF = 24.0  # width, in voxels

zs = np.arange(SIZE_ZYX[0], dtype=np.float32)[:, None, None]
ys = np.arange(SIZE_ZYX[1], dtype=np.float32)[None, :, None]
xs = np.arange(SIZE_ZYX[2], dtype=np.float32)[None, None, :]


level = functools.partial(shapes.level, (zs, ys, xs))
smooth_field = functools.partial(shapes.smooth_field, size_zyx=SIZE_ZYX)


class Ellipsoid:
    """A lung or the heart, in voxels."""

    def __init__(self, centre: Triple, radii: Triple) -> None:
        self.centre, self.radii, self.level = centre, radii, level(centre, radii)


@dataclasses.dataclass
class Body:
    """A phantom while it is drawn.

    `owner` says which sign a voxel shows, by its index among the findings; -1 where it shows none.
    """

    hu: Volume
    owner: np.ndarray[Any, np.dtype[np.int8]]
    centre: tuple[float, float, float]
    scale: float
    wall: Volume  # level of the body's ellipse by y and x: 1 at the skin
    lungs: tuple[Ellipsoid, Ellipsoid]  # right, left
    air: Region  # aerated lung
    heart: Ellipsoid
    aorta_yx: tuple[float, float]
    aorta_radius: float
    choices: Choices = dataclasses.field(default_factory=dict)
    chosen: Counter[int] = dataclasses.field(default_factory=Counter)

    def draw(self, sign: int, region: Region, hu: float | Volume, *, change_hu: float = 30.0) -> None:
        """Fill `region` with `hu`; voxels that change by more than `change_hu` show the sign."""
        at = np.flatnonzero(region)
        voxels = self.hu.reshape(-1)
        new = hu.reshape(-1)[at] if isinstance(hu, np.ndarray) else np.float32(hu)
        self.owner.reshape(-1)[at[np.abs(voxels[at] - new) > change_hu]] = sign
        voxels[at] = new

    def visible(self, sign: int) -> Region:
        """Return the voxels that show the sign."""
        return np.asarray(self.owner == sign)

    def choose(self, sign: int, worth: Sequence[float] | Region) -> int:
        """Return the index of the greatest worth; a phantom that is drawn again keeps its `choices`.

        All in which one sign heeds others goes through here: a sign stays where it is when another is left
        out.
        """
        key = (sign, self.chosen[sign])
        self.chosen[sign] += 1
        return self.choices.setdefault(key, int(np.argmax(worth)))

    def spot(
        self, sign: int, rng: np.random.Generator, side: int, height: tuple[float, float], spread: float = 0.7
    ) -> Point:
        """Return a point in aerated lung of `side`, inside the lung's ellipsoid shrunk to 0.7.

        `height` is a range along z, `spread` a limit along y and x, both in units of the lung's radii.
        """
        lung = self.lungs[side]
        low = np.array([height[0], -spread, -spread])
        high = np.array([height[1], spread, spread])
        tries = np.array(lung.centre) + rng.uniform(low, high, (48, 3)) * np.array(lung.radii)
        cells = np.clip(np.round(tries).astype(int), 0, np.array(SIZE_ZYX) - 1)
        z, y, x = cells.T
        good = self.air[z, y, x] & (self.owner[z, y, x] < 0) & (lung.level[z, y, x] < 0.7)
        return np.asarray(tries[self.choose(sign, good)], dtype=np.float64)


def ring(
    body: Body,
    at: Point,
    outer: float,
    inner: float,
    wall_hu: float,
    *,
    sign: int | None = None,
    reach: float = 1.6,
) -> None:
    """Draw an airway along z around `at`; radii and `reach` in voxels."""
    half = np.array([reach, outer, outer])
    low = np.maximum(np.ceil(at - half), 0).astype(int)
    high = np.minimum(np.floor(at + half) + 1, SIZE_ZYX).astype(int)
    box = tuple(slice(start, stop) for start, stop in zip(low, high, strict=True))
    distance = np.square(ys[:, box[1]] - at[1]) + np.square(xs[:, :, box[2]] - at[2])
    hu = np.where(distance < inner**2, np.float32(LUMEN_HU), np.float32(wall_hu))
    region = (distance < outer**2) & body.air[box]
    if sign is not None:
        changed = region & (np.abs(body.hu[box] - hu) > 30)
        body.owner[box][changed] = sign
    np.copyto(body.hu[box], hu, where=region)


def healthy(rng: np.random.Generator, *, large_heart: int | None, thick_airways: int | None) -> Body:
    """Draw a chest without lung signs.

    The size of the heart and of the airway walls belongs to the anatomy, so the two findings that are nothing
    but a size are drawn here where their index is given: a heart beyond half of the chest's width, and thick
    airways. With or without them the stream gives as many numbers.
    """
    scale = 1 + rng.uniform(-0.07, 0.07)
    cz, cy, cx = 16 + rng.uniform(-1.5, 1.5), 32 + rng.uniform(-2, 2), 32 + rng.uniform(-2, 2)
    wall = np.square((ys[0] - cy) / (25 * scale)) + np.square((xs[0] - cx) / (30 * scale))
    muscle = wall < rng.uniform(0.80, 0.88)  # patients differ in fat
    plane = np.where(muscle, MUSCLE_HU, np.where(wall < 1, FAT_HU, AIR_HU)).astype(np.float32)
    hu = np.repeat(plane[None], SIZE_ZYX[0], axis=0)

    right, left = (_lung(rng, (cz, cy, cx), scale, side) for side in (RIGHT, LEFT))
    air = (right.level < 1) | (left.level < 1)
    between = np.square((ys[0] - cy) / 13) + np.square((xs[0] - cx) / (5.5 * scale)) < 1
    height = slice(int(cz - 12), int(cz + 14))
    air[height, between] = False
    hu[height, between] = FAT_HU + 10
    texture = 12 * smooth_field(rng, (4, 6, 6)) + (LUNG_HU + rng.uniform(-20, 20))
    np.copyto(hu, texture, where=air)

    size = rng.uniform(*((0.85, 1.08) if large_heart is None else (1.38, 1.55))) * scale
    at = (cz - 6 + rng.uniform(-1, 1), cy - 5 + rng.uniform(-1, 1), cx + 4 + rng.uniform(-1, 1))
    radii = (8 * size, 8 * size, 9 * size)
    heart = Ellipsoid(at, radii)

    body = Body(
        hu=hu,
        owner=np.full(SIZE_ZYX, -1, np.int8),
        centre=(cz, cy, cx),
        scale=scale,
        wall=wall,
        lungs=(right, left),
        air=air,
        heart=heart,
        aorta_yx=(cy + 11 * scale, cx + 4.5 * scale),
        aorta_radius=2.7 + rng.uniform(-0.3, 0.4),
    )
    _bones(rng, body)
    _great_vessels(body)
    _lung_vessels(rng, body)
    _airways(rng, body, thick_airways)
    inside = heart.level < 1
    body.hu[inside] = BLOOD_HU
    body.air[inside] = False
    body.owner[inside] = -1 if large_heart is None else large_heart
    return body


def draw_table(body: Body, share: float) -> None:
    """Draw the table behind a patient, `share` of the way from its upper place to its lower one.

    No patient reaches so far: his voxels stay. The row that the table's upper side lies in is filled in part.
    """
    upper = TABLE_ROWS[0] + share * (TABLE_ROWS[1] - TABLE_ROWS[0])
    filled = np.clip(ys + 1 - upper, 0, 1) * (np.abs(xs - (SIZE_ZYX[2] - 1) / 2) < TABLE_HALF)
    body.hu += filled * np.float32(TABLE_HU - AIR_HU)


def _lung(rng: np.random.Generator, centre: tuple[float, float, float], scale: float, side: int) -> Ellipsoid:
    cz, cy, cx = centre
    outward = 1 if side == LEFT else -1
    at = (cz, cy - 1 + rng.uniform(-0.7, 0.7), cx + outward * (14 * scale + rng.uniform(-0.7, 0.7)))
    width = 9.7 if side == LEFT else 10.3
    radii = (14.5 * scale, 16 * scale + rng.uniform(-0.8, 0.8), width * scale + rng.uniform(-0.6, 0.6))
    return Ellipsoid(at, radii)


def _bones(rng: np.random.Generator, body: Body) -> None:
    cz, cy, cx = body.centre
    spine = np.square((ys[0] - (cy + 19 * body.scale)) / 5) + np.square((xs[0] - cx) / 4.5)
    body.hu[:, spine < 1] = rng.uniform(350, 500)
    body.hu[:, spine < 0.45] = rng.uniform(150, 250)  # spongy bone
    body.air[:, spine < 1] = False
    y, x = np.nonzero((body.wall > 0.80) & (body.wall < 0.93))
    course = np.mod(zs[:, 0] + rng.uniform(0, 5) + 0.25 * np.abs(y - cy), 6) < 1.8
    z, place = np.nonzero(course & ~body.air[:, y, x])
    body.hu[z, y[place], x[place]] = rng.uniform(350, 600)
    sternum = (np.abs(xs[0] - cx) < 2.5) & (np.abs(ys[0] - (cy - 22.5 * body.scale)) < 1.2)
    body.hu[int(cz - 3) :, sternum] = rng.uniform(300, 450)


def _great_vessels(body: Body) -> None:
    cz, cy, cx = body.centre
    ay, ax = body.aorta_yx
    aorta = np.square(ys[0] - ay) + np.square(xs[0] - ax) < body.aorta_radius**2
    body.hu[:, aorta] = BLOOD_HU
    body.air[:, aorta] = False
    above = slice(int(cz - 1), None)
    vena_cava = np.square(ys[0] - (cy - 3)) + np.square(xs[0] - (cx - 3.2)) < 3
    ascending = np.square(ys[0] - (cy - 5)) + np.square(xs[0] - (cx + 1)) < 6
    body.hu[above, vena_cava | ascending] = BLOOD_HU
    body.air[above, vena_cava | ascending] = False
    trachea = np.square(ys[0] - (cy + 1)) + np.square(xs[0] - cx)
    body.hu[int(cz + 3) :, trachea < 7] = MUSCLE_HU
    body.hu[int(cz + 3) :, trachea < 3] = AIR_HU


def _lung_vessels(rng: np.random.Generator, body: Body) -> None:
    cz, cy, cx = body.centre
    steps = np.arange(1, 16, 0.7)
    for outward in (-1, 1):
        hilum = np.array([cz + 1, cy, cx + outward * 5.5])
        course = rng.uniform([-1, -1, 0.2], [1, 1, 1.1], (10, 3)) * [1, 1, outward]
        course /= np.linalg.norm(course, axis=1, keepdims=True)
        points = hilum + course[:, None] * steps[:, None]
        z, y, x = np.clip(np.round(points).astype(int), 0, np.array(SIZE_ZYX) - 1).reshape(-1, 3).T
        # a vessel fills less of a voxel the further it is from the hilum
        blood = np.tile(-300 - 28 * steps, len(course)).astype(np.float32)
        ends = np.tile(steps, len(course)) < np.repeat(rng.uniform(9, 16, len(course)), len(steps))
        keep = body.air[z, y, x] & ends
        body.hu[z[keep], y[keep], x[keep]] = blood[keep]


def _airways(rng: np.random.Generator, body: Body, thick: int | None) -> None:
    cz, cy, cx = body.centre
    for outward in (-1, 1):
        for _ in range(2):
            z, y = cz + rng.uniform(-3, 3), cy + rng.uniform(-5, 5)
            at = np.array([z, y, cx + outward * (9 * body.scale + rng.uniform(-1, 1))])
            thickened = rng.uniform(2.8, 3.4)
            if thick is None:
                ring(body, at, 1.7, 1.0, -450)
            else:
                ring(body, at, thickened, 1.1, -100, sign=thick, reach=2.2)
