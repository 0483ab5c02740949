"""Sizes at which pictures are shown, and boxes on them: from a view's convention to voxels and back."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge

from evidcore.api import Box, Crop, DataError, EncoderInput, View, VisualPart
from evidcore.case.interaction import FULL
from evidcore.contracts import Grid
from evidcore.data import read_geometry
from evidcore.errors import RecipeError

LARGEST_ASPECT = 200  # as in transformers' smart_resize
ROUNDED = 1.0  # unit by which a box may reach over the edge of its tile


@dataclasses.dataclass(frozen=True, kw_only=True)
class PictureOptions:
    """How large pictures are shown, and in which coordinates boxes are written.

    Attributes:
        boxes: "thousandths" of the picture's sides, "pixels" of the picture as the encoder is given it
            (Qwen2.5-VL), or "voxels" from the corner of what is shown.
        multiple_px: of which both sides are multiples for an encoder that takes any size: 28 for Qwen2.5-VL,
            32 for Qwen3-VL.
        least_pixels: smaller pictures are enlarged to about so many pixels, for such an encoder.
        most_pixels: larger ones are reduced to at most so many.
    """

    boxes: Literal["thousandths", "pixels", "voxels"] = "thousandths"
    multiple_px: Annotated[int, Ge(1)] = 28
    least_pixels: Annotated[int, Ge(1)] = 56 * 56  # as the processor of Qwen2.5-VL
    most_pixels: Annotated[int, Ge(1)] = 28 * 28 * 1280

    def __post_init__(self) -> None:
        """Refuse bounds that no picture can keep."""
        if not max(self.least_pixels, self.multiple_px**2) <= self.most_pixels:
            raise RecipeError(
                f"model.view.most_pixels: must be at least least_pixels = {self.least_pixels} and one square "
                f"of {self.multiple_px} pixels, got {self.most_pixels}."
            )


PICTURES = PictureOptions()


def fitted(height: float, width: float, options: PictureOptions) -> tuple[int, int]:
    """Return height and width in pixels, multiples of `multiple_px`, of a picture that keeps its aspect.

    Raises:
        DataError: if one side is more than 200 times the other.

    Source:
        `smart_resize` of Qwen2-VL's image processor in transformers 5.23.
    """
    if max(height, width) > LARGEST_ASPECT * min(height, width):
        why = f"a picture of {width:g} x {height:g} pixels is too narrow"
        raise DataError(f"{why}: one side may be {LARGEST_ASPECT} times the other. Leave it out.")
    step = options.multiple_px
    high, wide = (round(side / step) * step for side in (height, width))
    if high * wide > options.most_pixels:
        shrink = math.sqrt(height * width / options.most_pixels)
        high, wide = (max(step, math.floor(side / shrink / step) * step) for side in (height, width))
    elif high * wide < options.least_pixels:
        grow = math.sqrt(options.least_pixels / (height * width))
        high, wide = (math.ceil(side * grow / step) * step for side in (height, width))
    return high, wide


@dataclasses.dataclass(frozen=True)
class Canvas:
    """The picture of a crop in voxels: tiles of one size, of which a lone slice is one."""

    z: tuple[int, ...]  # the slice on each tile, row by row; none on a projection
    rows: int
    columns: int
    crop: Crop  # the volume, with the box that each tile shows, as on its slice
    height: int
    width: int
    spacing_mm: tuple[float, float]  # y, x

    def on_slice(self, z: int) -> Crop:
        """Return one slice alone, as far as its tile shows it."""
        assert self.crop.box_zyx is not None
        return self.crop.cut((z, z + 1, *self.crop.box_zyx[2:]))


def canvas(crop: Crop) -> Canvas:
    """Return the picture of a crop; of several slices one behind the other, that of each."""
    geometry = read_geometry(crop.volume)
    z0, z1, y0, y1, x0, x1 = box = geometry.box_of(crop)
    spacing, whole = geometry.spacing_mm_zyx, dataclasses.replace(crop, box_zyx=box)
    drawing = crop.drawing
    if drawing is not None and drawing.axis:
        across = (x1 - x0, spacing[2]) if drawing.axis == "y" else (y1 - y0, spacing[1])
        return Canvas((), 1, 1, whole, z1 - z0, across[0], (spacing[0], across[1]))
    if drawing is not None and drawing.kind == "tiles":
        rows = -(-len(drawing.slices) // drawing.columns)
        size = rows * (y1 - y0), drawing.columns * (x1 - x0)
        return Canvas(drawing.slices, rows, drawing.columns, whole, *size, (spacing[1], spacing[2]))
    z = (z0,) if crop.is_slice else ()
    return Canvas(z, 1, 1, whole, y1 - y0, x1 - x0, (spacing[1], spacing[2]))


class PictureView(View):
    """A view that shows pictures: how large they are, and where boxes on them lie."""

    name: ClassVar[str]  # of the view in a recipe
    options: PictureOptions

    @property
    def box_unit(self) -> str:  # type: ignore[override]
        """Return the recipe's `boxes`."""
        return self.options.boxes

    def pictures(self, part: VisualPart) -> int:
        return 1

    def size_zyx(self, part: VisualPart, encoder: EncoderInput) -> Grid:
        """Return the size in voxels at which an encoder is given the pictures of a part.

        An encoder that takes any multiple of `multiple_px` is given the picture in its own aspect, in mm;
        another one in its usual height and width.

        Raises:
            RecipeError: if the encoder takes no pictures, or boxes in pixels have no meaning for it.
        """
        if not encoder.any_depth or encoder.spacing_mm_zyx is not None:
            takes = f"takes exactly {encoder.size_zyx[0]} slices"
            if encoder.spacing_mm_zyx is not None:
                takes = f"declares a spacing of {encoder.spacing_mm_zyx} mm"
            raise RecipeError(
                f"model.view: {self.name!r} shows pictures, but the encoder {takes}. "
                f'Use view = {{ use = "volume" }}, or a slice-wise encoder: timm-slices or published-vision.'
            )
        if encoder.multiple_px is None:
            if self.options.boxes == "pixels":
                raise RecipeError(
                    "model.view.boxes: 'pixels' are those of a picture in its own aspect, and the encoder "
                    f"takes {encoder.size_zyx[1:]} pixels (y, x) alone. Take 'thousandths', or a Qwen-VL."
                )
            return (self.pictures(part), *encoder.size_zyx[1:])
        if encoder.multiple_px != self.options.multiple_px:
            raise RecipeError(
                f"model.view.multiple_px: the encoder's tokens are {encoder.multiple_px} pixels wide, got "
                f"{self.options.multiple_px}. Set multiple_px = {encoder.multiple_px}."
            )
        return (self.pictures(part), *self._pixels(canvas(part.crop)))

    def to_source(self, part: VisualPart, box: Sequence[float | int]) -> Box | None:
        """Return a box on a picture as voxels of its slice; None where the picture shows no slice alone.

        Raises:
            ValueError: if it lies outside, on several tiles, or on one that is empty; names it.
        """
        shown = canvas(part.crop)
        if not shown.z:
            return None
        high, wide = self._sides(shown)
        if len(box) != 4:
            raise ValueError(f"a box has 4 numbers x0, y0, x1, y1, got {list(box)!r}")
        left, top, right, bottom = (float(edge) for edge in box)
        if not (0 <= left <= right <= wide and 0 <= top <= bottom <= high):
            why = f"the box {list(box)!r} must lie inside what was shown, in {self.options.boxes}"
            raise ValueError(f"{why}: 0 <= x0 <= x1 <= {wide:g} and 0 <= y0 <= y1 <= {high:g}")
        tile_wide, tile_high = wide / shown.columns, high / shown.rows
        column = min(int((left + right) / 2 / tile_wide), shown.columns - 1)
        row = min(int((top + bottom) / 2 / tile_high), shown.rows - 1)
        left, right = (edge - column * tile_wide for edge in (left, right))
        top, bottom = (edge - row * tile_high for edge in (top, bottom))
        over = max(-left, -top, right - tile_wide, bottom - tile_high)
        if over > ROUNDED:
            raise ValueError(f"the box {list(box)!r} lies on several slices of the picture; name one on one")
        place = row * shown.columns + column
        if place >= len(shown.z):
            raise ValueError(f"the box {list(box)!r} lies where the picture shows no slice")
        shares = (left / tile_wide, top / tile_high, right / tile_wide, bottom / tile_high)
        return shown.on_slice(shown.z[place]).voxels_of([FULL * min(max(item, 0.0), 1.0) for item in shares])

    def from_source(self, part: VisualPart, box: Box) -> tuple[float, float, float, float] | None:
        """Return voxels of a slice as a box on the picture; None where the picture shows no slice alone.

        Raises:
            ValueError: if the picture does not show them; names them.
        """
        shown = canvas(part.crop)
        if not shown.z:
            return None
        if box.z not in shown.z:
            raise ValueError(f"{box} lies on none of the slices shown, z={', '.join(map(str, shown.z))}")
        high, wide = self._sides(shown)
        tile_wide, tile_high = wide / shown.columns, high / shown.rows
        row, column = divmod(shown.z.index(box.z), shown.columns)
        left, top, right, bottom = shown.on_slice(box.z).shown_box(box)
        x0, x1 = ((column + edge / FULL) * tile_wide for edge in (left, right))
        y0, y1 = ((row + edge / FULL) * tile_high for edge in (top, bottom))
        return x0, y0, x1, y1

    def _sides(self, shown: Canvas) -> tuple[float, float]:
        """Return height and width of a picture in the unit of boxes."""
        if self.options.boxes == "pixels":
            return self._pixels(shown)
        return (FULL, FULL) if self.options.boxes == "thousandths" else (shown.height, shown.width)

    def _pixels(self, shown: Canvas) -> tuple[int, int]:
        """Return height and width at which an encoder of any size is given a picture."""
        finest = min(shown.spacing_mm)
        height, width = (
            round(count * step / finest)
            for count, step in zip((shown.height, shown.width), shown.spacing_mm, strict=True)
        )
        try:
            return fitted(height, width, self.options)
        except DataError as cause:
            raise DataError(f"{shown.crop.volume.path}: {cause}") from cause


def listed(slices: Sequence[int], *, number: int, of: int) -> str:
    """Return what names the slices of a volume; the volume too, where there are several."""
    volume_tag = f"volume {number}, " if of > 1 else ""
    return f"{volume_tag}slices {', '.join(map(str, slices))}"
