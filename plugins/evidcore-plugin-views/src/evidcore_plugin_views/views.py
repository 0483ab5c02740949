"""Views `montage`, `drr`, `video` and `image`."""

from typing import Annotated, Literal

from annotated_types import Ge

from evidcore.api import Case, Crop, DataError, InlineOptions, TextPart, VisualPart
from evidcore.builtin.views import spread
from evidcore.case import Drawing, Part
from evidcore.data import read_geometry
from evidcore.errors import RecipeError
from evidcore_plugin_views.picture_boxes import PICTURES, PictureOptions, PictureView, listed


class Montage(PictureView):
    """Show axial slices of each volume, evenly spaced, side by side in one picture.

    They run from inferior to superior, row by row; the text before names their source indices.
    """

    name = "montage"

    def __init__(
        self,
        *,
        rows: Annotated[int, Ge(1)] = 3,
        columns: Annotated[int, Ge(1)] = 4,
        pictures: Annotated[PictureOptions, InlineOptions] = PICTURES,
    ) -> None:
        """Set the tiles; a volume of fewer slices shows each of them in fewer rows."""
        self.rows, self.columns, self.options = rows, columns, pictures

    def render(self, case: Case) -> tuple[Part, ...]:
        """Return a list of slices and their picture, volume after volume."""
        parts: list[Part] = []
        for number, ref in enumerate(case.volumes, start=1):
            slices = tuple(spread(read_geometry(ref).shape_zyx[0], self.rows * self.columns))
            columns = min(self.columns, len(slices))
            drawing = Drawing(kind="tiles", slices=slices, columns=columns)
            named = listed(slices, number=number, of=len(case.volumes))
            parts += [
                TextPart(text=f"{named}, in rows of {columns}:"),
                VisualPart(crop=Crop(volume=ref, drawing=drawing)),
            ]
        return tuple(parts)


class Drr(PictureView):
    """Show projections of each volume, as a radiograph would (digitally reconstructed radiographs).

    No box on one has a slice, so none is taken back.
    """

    name = "drr"
    box_unit = ""

    def __init__(
        self,
        *,
        directions: tuple[Literal["front", "side"], ...] = ("front",),
        rays: Literal["attenuation", "mean"] = "attenuation",
        pictures: Annotated[PictureOptions, InlineOptions] = PICTURES,
    ) -> None:
        """Set what is projected.

        Args:
            directions: "front" sums from front to back, "side" from right to left; a picture each.
            rays: "attenuation" shows its sum along each ray, as a digital detector does, for volumes in HU;
                "mean" the mean value, in the encoder's windows, which must be wide.
            pictures: see `PictureOptions`.
        """
        if not directions or len(set(directions)) != len(directions):
            raise RecipeError(
                f"model.view.directions: must name 'front', 'side' or both, each once, got "
                f"{list(directions)}."
            )
        self.directions, self.rays, self.options = directions, rays, pictures

    def render(self, case: Case) -> tuple[Part, ...]:
        """Return a tag and a picture for each direction, volume after volume."""
        parts: list[Part] = []
        for number, ref in enumerate(case.volumes, start=1):
            volume_tag = f"volume {number}, " if len(case.volumes) > 1 else ""
            for direction in self.directions:
                drawing = Drawing(kind=self.rays, axis="y" if direction == "front" else "x")
                parts += [
                    TextPart(text=f"{volume_tag}projection from the {direction}:"),
                    VisualPart(crop=Crop(volume=ref, drawing=drawing)),
                ]
        return tuple(parts)


class Video(PictureView):
    """Show axial slices of each volume, evenly spaced, as the pictures of one visual part.

    They run from inferior to superior; the text before names their source indices. A box on several slices
    has no slice of its own, so none is taken back.
    """

    name = "video"

    def __init__(
        self,
        *,
        slices: Annotated[int, Ge(1)] = 16,
        pictures: Annotated[PictureOptions, InlineOptions] = PICTURES,
    ) -> None:
        """Set the number of slices per volume."""
        self.slices, self.options = slices, pictures

    def render(self, case: Case) -> tuple[Part, ...]:
        """Return a list of slices and all of them, volume after volume."""
        parts: list[Part] = []
        for number, ref in enumerate(case.volumes, start=1):
            slices = tuple(spread(read_geometry(ref).shape_zyx[0], self.slices))
            named = listed(slices, number=number, of=len(case.volumes))
            crop = Crop(volume=ref, drawing=Drawing(kind="slices", slices=slices))
            parts += [TextPart(text=f"{named}:"), VisualPart(crop=crop)]
        return tuple(parts)

    def pictures(self, part: VisualPart) -> int:
        crop = part.crop
        first, stop, *_ = read_geometry(crop.volume).box_of(crop)
        return len(crop.drawing.slices) if crop.drawing is not None else min(stop - first, self.slices)


class Image(PictureView):
    """Show each picture of a case as it is: in its own aspect and colours, where the encoder takes them."""

    name = "image"

    def __init__(self, *, pictures: Annotated[PictureOptions, InlineOptions] = PICTURES) -> None:
        """Take the options of pictures."""
        self.options = pictures

    def render(self, case: Case) -> tuple[Part, ...]:
        """Return one part per picture, tagged where there are several."""
        parts: list[Part] = []
        for number, ref in enumerate(case.volumes, start=1):
            depth, height, width = read_geometry(ref).shape_zyx
            if depth != 1:
                why = f"view 'image' shows pictures of one slice, and this volume has {depth}"
                raise DataError(f"{ref.path}: {why}. Use view = {{ use = 'slices' }}, or 'montage'.")
            if len(case.volumes) > 1:
                parts.append(TextPart(text=f"picture {number}:"))
            box = (0, 1, 0, height, 0, width)
            parts.append(VisualPart(crop=Crop(volume=ref, box_zyx=box, drawing=Drawing(kind="picture"))))
        return tuple(parts)
