"""Views: the whole volume, or tagged axial slices of it; boxes are x0, y0, x1, y1 in 0..1000 of a slice."""

from collections.abc import Sequence
from typing import Annotated, ClassVar

from annotated_types import Ge

from evidcore.case import Box, Case, Crop, Part, TextPart, VisualPart
from evidcore.contracts import EncoderInput, Grid, View
from evidcore.data.reading import read_geometry
from evidcore.errors import RecipeError


class Volume(View):
    """Show each volume of a case whole, as one visual part."""

    def render(self, case: Case) -> tuple[Part, ...]:
        """Return one part per volume, tagged where there are several."""
        parts: list[Part] = []
        for number, ref in enumerate(case.volumes, start=1):
            if len(case.volumes) > 1:
                parts.append(TextPart(text=f"volume {number}:"))
            parts.append(VisualPart(crop=Crop(volume=ref)))
        return tuple(parts)

    def size_zyx(self, part: VisualPart, encoder: EncoderInput) -> Grid:
        return encoder.size_zyx

    def to_source(self, part: VisualPart, box: Sequence[float | int]) -> Box | None:
        """Return a box on a single-slice part as voxels; None on a thick one, where it has no slice."""
        return part.crop.voxels_of(box) if part.crop.is_slice else None

    def from_source(self, part: VisualPart, box: Box) -> tuple[float, float, float, float] | None:
        """Return voxels of a single-slice part as a shown box, None on a thick one."""
        return part.crop.shown_box(box) if part.crop.is_slice else None


class Slices(View):
    """Show axial slices, evenly spaced over each volume, each behind a tag with its source index.

    A volume with fewer slices is shown whole. Needs an encoder that takes any depth: it is given one slice at
    a time.
    """

    tags_slices: ClassVar[bool] = True
    box_unit = "thousandths"

    def __init__(self, *, slices: Annotated[int, Ge(1)] = 8) -> None:
        self.slices = slices

    def render(self, case: Case) -> tuple[Part, ...]:
        """Return a tag and a slice, from inferior to superior, volume after volume."""
        parts: list[Part] = []
        for number, ref in enumerate(case.volumes, start=1):
            depth, height, width = read_geometry(ref).shape_zyx
            volume_tag = f"volume {number}, " if len(case.volumes) > 1 else ""
            for z in spread(depth, self.slices):
                crop = Crop(volume=ref, box_zyx=(z, z + 1, 0, height, 0, width))
                parts += [TextPart(text=f"{volume_tag}slice {z}:"), VisualPart(crop=crop)]
        return tuple(parts)

    def size_zyx(self, part: VisualPart, encoder: EncoderInput) -> Grid:
        """Return one slice of the encoder's usual height and width."""
        depth, height, width = encoder.size_zyx
        if not encoder.any_depth:
            raise RecipeError(
                f"model.view: 'slices' shows one slice at a time, but the encoder takes exactly {depth}. "
                f'Use view = {{ use = "volume" }}, or a slice-wise encoder: timm-slices, or vit3d with '
                f"patch_zyx = [1, 8, 8]."
            )
        return (1, height, width)

    def to_source(self, part: VisualPart, box: Sequence[float | int]) -> Box | None:
        return part.crop.voxels_of(box)

    def from_source(self, part: VisualPart, box: Box) -> tuple[float, float, float, float] | None:
        return part.crop.shown_box(box)


def spread(depth: int, count: int) -> list[int]:
    """Return the middle slices of `count` equal stretches of a volume; every slice if there are not more."""
    count = min(count, depth)
    return [(2 * number + 1) * depth // (2 * count) for number in range(count)]
