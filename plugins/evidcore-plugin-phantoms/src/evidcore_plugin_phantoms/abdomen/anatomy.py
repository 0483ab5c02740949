"""The healthy abdomen of one phantom, drawn in HU, portal venous phase."""

from collections.abc import Mapping

import numpy as np

from evidcore_plugin_phantoms import shapes
from evidcore_plugin_phantoms.abdomen.scene import TABLES, Grid, Scene, label_of
from evidcore_plugin_phantoms.shapes import Region, Volume

AIR_HU, GAS_HU, FAT_HU, MUSCLE_HU, TABLE_HU = -1000.0, -950.0, -105.0, 58.0, 70.0
TABLE_MM, TABLE_HALF_MM = 6.0, 175.0  # how thick it is, and half its width
TABLE_RANGE_MM = 11.0  # how much lower it may be
WALL_MM = 11.0  # muscle between the cavity and the fat under the skin
Rng = np.random.Generator
Tissue = Mapping[str, float]  # HU by organ


def draw_tissue(rng: Rng) -> Tissue:
    """Draw how far the medium has come, and how fatty the liver is: what it makes of the organs, in HU."""
    later = rng.uniform(-10, 10)
    return {organ: rng.uniform(*ends) + later for organ, ends in TABLES["tissue"].items()}


def healthy(rng: Rng, grid: Grid, tissue: Tissue) -> Scene:
    """Draw an abdomen without lesions."""
    scene = _body(rng, grid)
    _back(rng, scene)
    _vessels(rng, scene, tissue)
    for side, outward, height_mm in (("left", 1, 22.0), ("right", -1, 8.0)):
        at = scene.place(height_mm + rng.uniform(-8, 8), 0.42, outward * rng.uniform(0.47, 0.53))
        radii = (rng.uniform(44, 55), rng.uniform(22, 27), rng.uniform(24, 30))
        scene.ellipsoid(f"{side} kidney", at, radii, tissue["kidney"], gap_mm=5)
    depth_mm, width_mm = scene.half_mm
    at = scene.place(rng.uniform(8, 20), -0.45, rng.uniform(-0.40, -0.32))
    radii = (rng.uniform(20, 28), rng.uniform(13, 17), rng.uniform(13, 17))
    scene.ellipsoid("gallbladder", at, radii, rng.uniform(4, 14), gap_mm=2)
    head_mm, tail_mm = rng.uniform(8, 16), rng.uniform(42, 54)
    forward = rng.uniform(0.10, 0.20)
    for share in np.linspace(0, 1, 12):  # from head to tail, bent forward over the spine
        height_mm = head_mm + share * (tail_mm - head_mm)
        at = scene.place(height_mm, 0.08 - forward * np.sin(np.pi * share), -0.14 + 0.60 * share)
        thick_mm = 15 - 3.5 * share
        scene.ellipsoid("pancreas", at, (thick_mm + 2, thick_mm, thick_mm), tissue["pancreas"])
    at = scene.place(rng.uniform(64, 80), 0.30, rng.uniform(0.68, 0.74))
    radii = (rng.uniform(40, 52), 0.42 * depth_mm, rng.uniform(0.21, 0.27) * width_mm)
    scene.ellipsoid("spleen", at, radii, tissue["spleen"], gap_mm=4)
    at = scene.place(rng.uniform(64, 80), -0.36, rng.uniform(0.40, 0.46))
    radii = (rng.uniform(34, 44), 0.38 * depth_mm, rng.uniform(0.28, 0.34) * width_mm)
    scene.ellipsoid("stomach", at, radii, rng.uniform(12, 28), gap_mm=4)
    _gas(scene, "stomach", at[1] - rng.uniform(0.45, 0.80) * radii[1])
    height_mm = rng.uniform(62, 76)
    right = (rng.uniform(60, 70), 0.80 * depth_mm, rng.uniform(0.44, 0.50) * width_mm)
    left = (rng.uniform(32, 42), 0.42 * depth_mm, rng.uniform(0.36, 0.46) * width_mm)
    scene.ellipsoid("liver", scene.place(height_mm, -0.05, -0.48), right, tissue["liver"])
    scene.ellipsoid("liver", scene.place(height_mm + 12, -0.42, -0.04), left, tissue["liver"])
    at = scene.place(rng.uniform(-121, -114), -0.10, rng.uniform(-0.05, 0.05))
    radii = (rng.uniform(22, 29), rng.uniform(24, 32), rng.uniform(28, 38))
    scene.ellipsoid("bladder", at, radii, rng.uniform(2, 10), gap_mm=4)
    for _ in range(16):
        at = scene.place(rng.uniform(-100, -8), rng.uniform(-0.65, 0.15), rng.uniform(-0.75, 0.75))
        radius_mm = rng.uniform(13, 19)
        scene.ellipsoid("bowel", at, (radius_mm, radius_mm, radius_mm), rng.uniform(20, 50), gap_mm=3)
    _gas(scene, "bowel", scene.place(0, rng.uniform(-0.75, -0.5), 0)[1])
    return scene


def _body(rng: Rng, grid: Grid) -> Scene:
    """Draw skin to cavity: fat, the muscle of the wall, ribs in it, the table behind."""
    depth_mm, width_mm = rng.uniform(77, 88), rng.uniform(118, 135)
    fat_mm = rng.uniform(8, 28)
    at_y, at_x = rng.uniform(-12, -6), rng.uniform(-6, 6)
    z, y, x = grid.axes_mm

    def ring(y_mm: float, x_mm: float) -> Volume:
        """Return the level of the body's outline at a distance from the cavity, shape (y, x)."""
        across = np.abs((y[0] - at_y) / (depth_mm + y_mm)) ** 2.3
        return np.asarray(across + np.abs((x[0] - at_x) / (width_mm + x_mm)) ** 2.3, dtype=np.float32)

    cavity = ring(0, 0) < 1
    wall = ring(WALL_MM, WALL_MM) < 1
    skin = ring(WALL_MM + 0.7 * fat_mm, WALL_MM + fat_mm) < 1
    plane = np.where(skin, FAT_HU, AIR_HU).astype(np.float32)
    owners = np.where(skin, label_of("fat"), 0).astype(np.uint8)
    plane[wall & ~cavity] = MUSCLE_HU
    owners[wall & ~cavity] = label_of("muscle")
    table_mm = at_y + depth_mm + WALL_MM + 0.7 * fat_mm + 5
    table = (y[0] > table_mm) & (y[0] < table_mm + TABLE_MM) & (np.abs(x[0]) < TABLE_HALF_MM)
    plane[table] = TABLE_HU
    owners[table] = label_of("table")
    height = grid.size_zyx[0]
    scene = Scene(
        grid=grid,
        hu=np.repeat(plane[None], height, axis=0),
        organs=np.repeat(owners[None], height, axis=0),
        free=np.repeat(cavity[None], height, axis=0),
        unevenness=shapes.smooth_field(rng, (6, 7, 9), grid.size_zyx),
        half_mm=(depth_mm, width_mm),
        middle_mm=(at_y, at_x),
        table_mm=table_mm,
    )
    slope = z + 0.5 * (y - at_y) + rng.uniform(0, 30)  # ribs run down towards the front
    course = (np.mod(slope, 30) < 11) & (z > -35) & (np.abs(x - at_x) > 28)
    ribs: Region = course & ((ring(2, 2) >= 1) & (ring(WALL_MM - 2, WALL_MM - 2) < 1))[None]
    scene.organs[ribs] = label_of("ribs")
    scene.hu[ribs] = rng.uniform(300, 500)
    return scene


def lower_table(scene: Scene, share: float) -> None:
    """Draw the table `share` of the way from its usual height to 11 mm below; rows may be filled in part."""
    table = scene.of("table")
    scene.hu[table], scene.organs[table] = AIR_HU, 0
    _, y, x = scene.grid.axes_mm
    half_mm = scene.grid.step_mm_zyx[1] / 2
    top_mm = scene.table_mm + share * TABLE_RANGE_MM
    inside_mm = np.minimum(y + half_mm, top_mm + TABLE_MM) - np.maximum(y - half_mm, top_mm)
    filled = np.clip(inside_mm / (2 * half_mm), 0, 1) * (np.abs(x) < TABLE_HALF_MM) * (scene.organs == 0)
    scene.hu += (filled * (TABLE_HU - AIR_HU)).astype(np.float32)
    scene.organs[filled >= 0.5] = label_of("table")


def _back(rng: Rng, scene: Scene) -> None:
    """Draw the spine and the muscles beside it."""
    z, y, x = scene.grid.axes_mm
    _, back_y, mid_x = scene.place(0, 1, 0)
    bone = np.square((y - back_y + 6) / 19) + np.square((x - mid_x) / 23)
    disc = np.mod(z + rng.uniform(0, 34), 34) < 7
    scene.paint("spine", (bone < 1) & disc, 90.0)
    scene.paint("spine", (bone < 0.6) & ~disc, rng.uniform(160, 240))
    scene.paint("spine", (bone < 1) & ~disc, rng.uniform(350, 480))
    for outward in (-1, 1):
        beside = np.square((y - back_y + 4) / 15) + np.square((x - mid_x - outward * 40) / 24)
        psoas = np.square((y - back_y + 22) / 14) + np.square((x - mid_x - outward * 34) / 13)
        scene.paint("muscle", (beside < 1) | ((psoas < 1) & (z < 25)), MUSCLE_HU)


def _vessels(rng: Rng, scene: Scene, tissue: Tissue) -> None:
    """Draw the aorta and the lower vena cava, as far as they are single."""
    z, y, x = scene.grid.axes_mm
    _, back_y, mid_x = scene.place(0, 1, 0)
    front_mm = back_y - rng.uniform(37, 40)
    for vessel, off_mm, radius_mm, hu in (
        ("aorta", rng.uniform(6, 10), rng.uniform(9, 11), tissue["aorta"]),
        ("vena cava", rng.uniform(-20, -16), rng.uniform(9, 12), tissue["vena_cava"]),
    ):
        tube = np.square(y - front_mm) + np.square(x - mid_x - off_mm) < radius_mm**2
        scene.paint(vessel, tube & (z > -70), hu)


def _gas(scene: Scene, organ: str, above_y_mm: float) -> None:
    """Fill what lies in front of a level with gas, which rises in a supine patient."""
    _, y, _ = scene.grid.axes_mm
    scene.hu[scene.of(organ) & (y < above_y_mm)] = GAS_HU
