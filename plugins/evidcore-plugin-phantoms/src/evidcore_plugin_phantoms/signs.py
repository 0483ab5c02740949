"""How each finding looks: where a sign may lie and what it does to the HU of a phantom."""

from collections.abc import Callable

import numpy as np
from evidcore_plugin_reports.findings import CT_RATE_FINDINGS

from evidcore_plugin_phantoms.anatomy import (
    SIZE_ZYX,
    SPACING_MM_ZYX,
    Body,
    Point,
    level,
    ring,
    smooth_field,
    xs,
    ys,
    zs,
)

Rng = np.random.Generator
Sign = Callable[[Body, int, Rng, int], float | None]  # body, index, stream, side -> size in mm if it has one


def index_of(finding: str) -> int:
    """Return the finding's place in the vocabulary."""
    return CT_RATE_FINDINGS.index(finding)


def is_visible(body: Body, finding: str) -> bool:
    """Tell whether a sign shows in so many voxels, though others hide it, that it is labelled."""
    fewest = {"lung nodule": 12, "lung opacity": 60}.get(finding, 10)
    return int(body.visible(index_of(finding)).sum()) >= fewest


def ball(at: Point, radius_mm: float, squash: float = 1.0) -> np.ndarray:
    """Return the level of a ball around `at` (voxels); `squash` shortens it along z."""
    z, y, x = (radius_mm / step for step in SPACING_MM_ZYX)
    return level((float(at[0]), float(at[1]), float(at[2])), (z * squash, y, x))


def _mosaic(body: Body, sign: int, rng: Rng, side: int) -> None:
    dense = body.air & (smooth_field(rng, (5, 7, 7)) > 0)
    body.draw(sign, dense, body.hu + np.float32(rng.uniform(110, 170)))


def _emphysema(body: Body, sign: int, rng: Rng, side: int) -> None:
    upper = body.air & (zs > body.centre[0] - 1)
    holes = upper & (smooth_field(rng, (11, 21, 21)) > 0.5)
    body.draw(sign, holes, rng.uniform(-985, -960))


def _opacity(body: Body, sign: int, rng: Rng, side: int) -> None:
    at = body.spot(sign, rng, side, (-0.5, 0.7))
    edge = 1 + 0.5 * smooth_field(rng, (8, 14, 14))
    patch = (ball(at, rng.uniform(26, 36), 1.2) < edge) & body.air
    hazy = np.maximum(body.hu, np.float32(rng.uniform(-620, -520)))
    body.draw(sign, patch & (body.hu < -650), hazy)


def _consolidation(body: Body, sign: int, rng: Rng, side: int) -> None:
    at = body.spot(sign, rng, side, (-0.7, 0.3))
    edge = 1 + 0.5 * smooth_field(rng, (8, 14, 14))
    patch = (ball(at, rng.uniform(26, 36), 1.2) < edge) & body.air
    airways = rng.random(SIZE_ZYX, dtype=np.float32) < 0.06  # air bronchograms
    body.draw(sign, patch & ~airways, rng.uniform(15, 50))


def _nodule(body: Body, sign: int, rng: Rng, side: int) -> float:
    radius_mm = rng.uniform(12.5, 15.0)  # up to 30 mm across; larger would be a mass
    dense = rng.uniform(20, 70)
    clear = body.air & (body.owner < 0)
    tries = [ball(body.spot(sign, rng, side, (-0.6, 0.7)), radius_mm) < 1 for _ in range(6)]
    region = tries[body.choose(sign, [int((inside & clear).sum()) for inside in tries])]
    body.draw(sign, region & body.air, dense)
    return float(2 * radius_mm)


def _fibrotic(body: Body, sign: int, rng: Rng, side: int) -> None:
    lung = body.lungs[side]
    apex = body.air & (lung.level < 1) & (zs > lung.centre[0] + 0.4 * lung.radii[0])
    for _ in range(3):
        tilt = rng.standard_normal(3) * [0.4, 1, 1]
        tilt /= np.linalg.norm(tilt)
        shift = np.array([0.62 * lung.radii[0], rng.uniform(-4, 4), rng.uniform(-3, 3)])
        at = np.array(lung.centre) + shift
        plane = (zs - at[0]) * tilt[0] + (ys - at[1]) * tilt[1] + (xs - at[2]) * tilt[2]
        body.draw(sign, apex & (np.abs(plane) < 0.8), rng.uniform(-200, 20))


def _atelectasis(body: Body, sign: int, rng: Rng, side: int) -> None:
    lung = body.lungs[side]
    height = lung.centre[0] - rng.uniform(0.4, 0.65) * lung.radii[0]
    slope = rng.uniform(0.1, 0.3)
    plate = np.abs(zs - height - slope * (ys - lung.centre[1])) < rng.uniform(0.8, 1.4)
    plate = plate & (ys > lung.centre[1] - 2) & (lung.level < 1) & body.air
    body.draw(sign, plate, rng.uniform(20, 60))


def _pleural_effusion(body: Body, sign: int, rng: Rng, side: int) -> None:
    lung = body.lungs[side]
    edge = lung.centre[1] + rng.uniform(0.42, 0.68) * lung.radii[1]
    fluid = (ys > edge + 0.25 * (zs - lung.centre[0])) & (lung.level < 1.02) & body.air
    body.draw(sign, fluid, rng.uniform(2, 18))


def _bronchiectasis(body: Body, sign: int, rng: Rng, side: int) -> None:
    for _ in range(4):
        at = body.spot(sign, rng, side, (-0.7, 0.2), spread=0.6)
        outer = rng.uniform(2.7, 3.4)
        ring(body, at, outer, outer - 0.9, rng.uniform(-350, -150), sign=sign, reach=2.0)


def _septal(body: Body, sign: int, rng: Rng, side: int) -> None:
    right, left = (lung.level for lung in body.lungs)
    rim = ((right < 1) & (right > 0.5)) | ((left < 1) & (left > 0.5))
    lines = (np.mod(ys + rng.uniform(0, 4), 4) < 1) | (np.mod(zs + rng.integers(0, 4), 4) < 1)
    net = rim & lines & (zs < body.centre[0]) & body.air
    body.draw(sign, net, np.maximum(body.hu, np.float32(rng.uniform(-560, -420))))


def _lymph_nodes(body: Body, sign: int, rng: Rng, side: int) -> float:
    cz, cy, cx = body.centre
    largest_mm = 0.0
    for _ in range(int(rng.integers(4, 8))):
        outward = rng.choice([-1, 1])
        z, y = cz + rng.uniform(2, 10), cy + rng.uniform(-8, 7)
        at = np.array([z, y, cx + outward * rng.uniform(3.5, 6.5)])
        radius_mm = rng.uniform(12, 17)
        body.draw(sign, ball(at, radius_mm, 1.3) < 1, rng.uniform(30, 60))
        largest_mm = max(largest_mm, 2 * radius_mm)
    return largest_mm


def _hernia(body: Body, sign: int, rng: Rng, side: int) -> None:
    cz, cy, cx = body.centre
    at = np.array([cz - 9 + rng.uniform(-1, 1), cy + 9, cx - 1 + rng.uniform(-1, 1)])
    sac = ball(at, rng.uniform(22, 30), 1.3)
    body.draw(sign, sac < 1, 30.0)
    body.draw(sign, (sac < 0.5) & (at[1] > ys), -950.0)  # swallowed air rises in a supine patient


def _pericardial_effusion(body: Body, sign: int, rng: Rng, side: int) -> None:
    thick = (1 + rng.uniform(0.32, 0.6)) ** 1.6
    rim = (body.heart.level >= 1) & (body.heart.level < thick) & (body.wall < 0.75)
    rim &= body.hu < 150  # spine and sternum stay
    body.draw(sign, rim, rng.uniform(0, 15), change_hu=20.0)
    body.air &= ~rim


def _aortic_calcification(body: Body, sign: int, rng: Rng, side: int) -> None:
    ay, ax = body.aorta_yx
    off = np.sqrt(np.square(ys - ay) + np.square(xs - ax)) - body.aorta_radius
    turn = np.mod(np.arctan2(ys - ay, xs - ax) + (rng.uniform(0, 6) + 0.3 * zs), 3.1)
    plaque = (np.abs(off) < 0.8) & (turn < rng.uniform(0.7, 1.2))
    plaque = plaque & (np.mod(zs + rng.uniform(0, 9), 9) < rng.uniform(4, 7))
    body.draw(sign, plaque, rng.uniform(600, 1000))


def _coronary_calcification(body: Body, sign: int, rng: Rng, side: int) -> None:
    z, y, x = body.heart.centre
    rz, ry, rx = body.heart.radii
    for _ in range(int(rng.integers(4, 8))):
        turn = rng.uniform(-1.2, 1.2)
        at = (z + rng.uniform(-0.2, 0.6) * rz, y - 0.8 * ry * np.cos(turn), x + 0.8 * rx * np.sin(turn))
        body.draw(sign, level(at, (1.1, 1.0, 1.3)) < 1, rng.uniform(500, 900))


def _medical_material(body: Body, sign: int, rng: Rng, side: int) -> None:
    cz, cy, cx = body.centre
    lead_x, lead_y = cx - rng.uniform(2, 6), cy - rng.uniform(3, 9)
    lead = (np.abs(xs - lead_x - 0.15 * (zs - cz)) < 0.8) & (np.abs(ys - lead_y) < 0.8)
    body.draw(sign, lead & (zs > cz + rng.uniform(-3, 4)), rng.uniform(2500, 3000))
    if rng.random() < 0.5:  # a generator under the skin
        at = (cz + rng.uniform(2, 8), cy - 17 * body.scale, cx + 14 * body.scale)
        body.draw(sign, level(at, (2.0, 1.5, 3.0)) < 1, 2800.0)


# In drawing order: what is drawn later lies in front.
SIGNS: dict[str, Sign] = {
    "pericardial effusion": _pericardial_effusion,
    "mosaic attenuation pattern": _mosaic,
    "emphysema": _emphysema,
    "lung opacity": _opacity,
    "interlobular septal thickening": _septal,
    "consolidation": _consolidation,
    "pulmonary fibrotic sequela": _fibrotic,
    "atelectasis": _atelectasis,
    "pleural effusion": _pleural_effusion,
    "bronchiectasis": _bronchiectasis,
    "lung nodule": _nodule,
    "lymphadenopathy": _lymph_nodes,
    "hiatal hernia": _hernia,
    "arterial wall calcification": _aortic_calcification,
    "coronary artery wall calcification": _coronary_calcification,
    "medical material": _medical_material,
}
