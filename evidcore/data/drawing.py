"""Pictures that are made of a volume, as a crop's `drawing` says.

- `slices`: the axial slices that it lists, one behind the other;
- `tiles`: the axial slices that it lists in one picture, row by row, air in tiles that are left over;
- `mean`: along each ray, the mean value;
- `attenuation`: along each ray, the sum of attenuation, as a digital detector shows it: air is black, the
  99.5th percentile of the picture white;
- `picture`: a photograph as it is, in its colours; anything else than a file of 8 bits as without a drawing.

Rays run along y, which gives a view from the front, or along x, from the patient's right. Superior is above.
"""

import dataclasses

import numpy as np

from evidcore.case import Crop
from evidcore.data.files import format_of
from evidcore.data.grid import Array, Geometry
from evidcore.data.pictures import Picture, colours
from evidcore.errors import DataError

WATER_PER_MM = 0.0206  # attenuation at 60 keV: 0.2059 cm2/g, Hubbell & Seltzer 1995, NISTIR 5632, table 4
WHITE_PERCENTILE = 99.5
AXES = {"y": 1, "x": 2}


@dataclasses.dataclass(frozen=True)
class Rendering:
    """Voxels of pictures, (z, y, x), and their size."""

    array: Array
    spacing_mm_zyx: tuple[float, float, float]
    window: tuple[float, float] | None  # what is black and white, where it is not for the volume to say


def render(crop: Crop, region: Array, geometry: Geometry) -> Rendering:
    """Return what a crop shows of its region, (z, y, x)."""
    drawing, spacing = crop.drawing, geometry.spacing_mm_zyx
    if drawing is None or drawing.kind == "picture":
        return Rendering(region, spacing, None)
    if drawing.kind in ("slices", "tiles"):
        first = crop.box_zyx[0] if crop.box_zyx else 0
        if absent := [z for z in drawing.slices if not first <= z < first + len(region)]:
            raise DataError(
                f"{crop.volume.path}: slice {absent[0]} is drawn, and the crop has slices {first} to "
                f"{first + len(region) - 1}. Draw slices that are there."
            )
        chosen = region[[z - first for z in drawing.slices]]
        if drawing.columns:  # row by row in one picture, (1, y, x)
            count, height, width = chosen.shape
            rows, columns = -(-count // drawing.columns), drawing.columns
            tiles = np.full((rows * columns, height, width), chosen.min(), chosen.dtype)
            tiles[:count] = chosen
            square = tiles.reshape(rows, columns, height, width).transpose(0, 2, 1, 3)
            chosen = square.reshape(1, rows * height, columns * width)
        return Rendering(chosen, spacing, None)
    axis, window = AXES[drawing.axis], None
    if drawing.kind == "attenuation":
        if crop.volume.intensity != "hu":
            raise DataError(
                f"{crop.volume.path}: attenuation is worked out of HU, and the volume's intensity is "
                f"{crop.volume.intensity!r}. Draw the mean, or set intensity = 'hu' if the values are HU."
            )
        water = np.maximum(1 + region.astype(np.float32) / 1000, 0)
        film = WATER_PER_MM * spacing[axis] * water.sum(axis=axis)
        window = (0.0, max(float(np.percentile(film, WHITE_PERCENTILE)), 1e-6))
    else:
        film = region.mean(axis=axis, dtype=np.float32)
    step = (spacing[axis] * region.shape[axis], spacing[0], spacing[3 - axis])
    return Rendering(film[None, ::-1], step, window)


def photograph(crop: Crop, *, in_colours: bool) -> Array | None:
    """Return a crop that is drawn as a photograph, uint8, (y, x) or (y, x, colour); None where it is none."""
    is_one = crop.drawing is not None and crop.drawing.kind == "picture"
    if not is_one or not isinstance(format_of(crop.volume.path), Picture):
        return None
    whole = colours(crop.volume.path, in_colours=in_colours)
    if whole is None or crop.box_zyx is None:
        return whole
    _, _, y0, y1, x0, x1 = crop.box_zyx
    return whole[y0:y1, x0:x1]
