"""The grid of an abdominal phantom in mm, and its organs while they are drawn."""

import dataclasses
import functools
import tomllib
from pathlib import Path

import numpy as np

from evidcore_plugin_phantoms import shapes
from evidcore_plugin_phantoms.shapes import Region, Triple, Volume

FIELD_MM_ZYX = (300.0, 288.0, 384.0)  # whatever the number of voxels
TABLES = tomllib.loads(Path(__file__).with_name("tables.toml").read_text(encoding="utf-8"))
ORGANS: tuple[str, ...] = tuple(TABLES["organs"])
Box = tuple[slice, slice, slice]


def label_of(organ: str) -> int:
    """Return the organ's value in the label map; 0 is air."""
    return ORGANS.index(organ) + 1


@dataclasses.dataclass(frozen=True)
class Grid:
    """Voxels that fill the field of view; coordinates in mm in the body, to superior, posterior, left.

    A larger patient is drawn as any other and scanned with smaller steps.
    """

    size_zyx: tuple[int, int, int]
    middle_mm: Triple = (0.0, 0.0, 0.0)  # where in the body the field's middle is
    scale: float = 1.0  # how many mm of the scan are a mm of the body as it is drawn

    @property
    def spacing_mm_zyx(self) -> Triple:
        """Return the distance between voxel centres."""
        z, y, x = (field / size for field, size in zip(FIELD_MM_ZYX, self.size_zyx, strict=True))
        return z, y, x

    @property
    def step_mm_zyx(self) -> Triple:
        """Return the distance between voxel centres in the body as it is drawn."""
        z, y, x = (step / self.scale for step in self.spacing_mm_zyx)
        return z, y, x

    @functools.cached_property
    def axes_mm(self) -> tuple[Volume, Volume, Volume]:
        """Return the voxel centres along z, y and x, shaped to broadcast to (z, y, x)."""
        z, y, x = (
            (np.arange(size, dtype=np.float32) - (size - 1) / 2) * np.float32(step) + np.float32(middle)
            for size, step, middle in zip(self.size_zyx, self.step_mm_zyx, self.middle_mm, strict=True)
        )
        return z[:, None, None], y[None, :, None], x[None, None, :]

    def box(self, centre_mm: Triple, reach_mm: Triple) -> Box:
        """Return the slices of the voxels within `reach_mm` of `centre_mm` along each axis."""
        z, y, x = (
            slice(*np.searchsorted(axis.reshape(-1), (centre - reach, centre + reach)))
            for axis, centre, reach in zip(self.axes_mm, centre_mm, reach_mm, strict=True)
        )
        return z, y, x

    def level(self, box: Box, centre_mm: Triple, radii_mm: Triple) -> Volume:
        """Return `shapes.level` on the voxels of `box`."""
        z, y, x = self.axes_mm
        return shapes.level((z[box[0]], y[:, box[1]], x[:, :, box[2]]), centre_mm, radii_mm)


@dataclasses.dataclass
class Scene:
    """A phantom while it is drawn.

    What is drawn first stays: it takes its voxels, and a shell around them, out of `free`.
    """

    grid: Grid
    hu: Volume
    organs: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]  # values of ORGANS, 0 for air
    free: Region  # fat of the abdominal cavity that no organ has taken
    unevenness: Volume  # smooth unit noise that bends the outlines
    half_mm: tuple[float, float]  # half depth (y) and half width (x) of the cavity
    middle_mm: tuple[float, float]  # y, x of its axis
    table_mm: float  # y of the table's upper side

    def place(self, z_mm: float, y_share: float, x_share: float) -> Triple:
        """Return a point by its height and by shares of the cavity's half depth and half width."""
        (half_y, half_x), (y, x) = self.half_mm, self.middle_mm
        return z_mm, y + y_share * half_y, x + x_share * half_x

    def paint(self, organ: str, region: Region, hu: float, box: Box | None = None) -> None:
        """Give the free voxels of `region` to an organ; `region` covers `box`, or everything."""
        part = box or (slice(None), slice(None), slice(None))
        taken = region & self.free[part]
        self.organs[part][taken] = label_of(organ)
        self.hu[part][taken] = hu
        self.free[part][taken] = False

    def ellipsoid(
        self, organ: str, centre_mm: Triple, radii_mm: Triple, hu: float, *, gap_mm: float = 0.0
    ) -> None:
        """Draw an organ or a part of one; what is drawn later keeps `gap_mm` of fat from it."""
        z, y, x = (1.25 * radius + gap_mm for radius in radii_mm)
        box = self.grid.box(centre_mm, (z, y, x))
        bent = 0.12 * self.unevenness[box]
        self.paint(organ, self.grid.level(box, centre_mm, radii_mm) < 1 + bent, hu, box)
        if gap_mm:
            z, y, x = (radius + gap_mm for radius in radii_mm)
            self.free[box] &= self.grid.level(box, centre_mm, (z, y, x)) >= 1 + bent

    def mirror(self) -> None:
        """Exchange left and right, and the names that say a side."""
        left, right = label_of("left kidney"), label_of("right kidney")
        renamed = np.arange(len(ORGANS) + 1, dtype=np.uint8)
        renamed[[left, right]] = right, left
        self.organs = renamed[self.organs[..., ::-1]]
        self.hu = np.ascontiguousarray(self.hu[..., ::-1])

    def of(self, organ: str) -> Region:
        return np.asarray(self.organs == label_of(organ))
