"""Tools a model may call while it answers: look closer, measure."""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

from annotated_types import Ge

from evidcore.api import Box, Crop, EncoderInput, Prompt, TextPart, Tool, View, VisualPart
from evidcore.case import Part
from evidcore.data import read_geometry
from evidcore.errors import RecipeError

SMALLEST_CROP_VOXELS = 4  # a closer look at less is one flat colour

_SLICE = {"type": "integer", "minimum": 0, "description": "index of the slice, as in its tag"}
_VOLUME = {"type": "integer", "minimum": 1, "description": "which volume, where several are shown"}
_LABEL = {"type": "string", "description": "what is looked for"}
_BEYOND = 1e9  # of any coordinate


def _coordinates(count: int) -> dict[str, Any]:
    return {"type": "array", "items": {"type": "number"}, "minItems": count, "maxItems": count}


def _schema(required: Sequence[str], **properties: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the JSON schema of a tool's arguments, of which each may name a volume."""
    return {
        "type": "object",
        "properties": {**properties, "volume": _VOLUME},
        "required": [*required],
        "additionalProperties": False,
    }


class CropTool(Tool):
    """Look closer at a box on a slice; on a whole volume, at a slab of slices around it."""

    name: ClassVar[str] = "crop"
    description: ClassVar[str] = "Look closer at a part of a slice. The box is given as x0, y0, x1, y1."
    schema: ClassVar[Mapping[str, Any]] = _schema(["slice", "box"], slice=_SLICE, box=_coordinates(4))
    unit: ClassVar[str] = "voxels"  # as messages call it
    smallest_side: int = SMALLEST_CROP_VOXELS

    def __init__(self, view: View, *, slab_slices: Annotated[int, Ge(1)] = 16) -> None:
        """Set how many slices are shown around the named one where a whole volume was."""
        self.view = view
        self.slab_slices = slab_slices

    def __call__(self, arguments: Mapping[str, Any], prompt: Prompt) -> tuple[Part, ...]:
        source, flat = _shown_slice(arguments, self.schema, prompt)
        box = _on_slice(self.view, flat, _numbers(arguments, "box", 4))
        if arguments.get("slice", box.z) != box.z:
            raise ValueError(
                f"the box {list(arguments['box'])!r} lies on slice {box.z}, got {arguments['slice']!r}"
            )
        if min(box.y1 - box.y0, box.x1 - box.x0) < self.smallest_side:
            raise ValueError(
                f"the box {list(arguments['box'])!r} is too small: {box.x1 - box.x0} x {box.y1 - box.y0} "
                f"{self.unit}; each side needs at least {self.smallest_side}"
            )
        start, stop = box.z, box.z + 1
        if not (source.is_slice or _is_tiled(source)):  # a stretch around it that stays in what was shown
            low, high = _depth(source)
            start = max(low, min(box.z - self.slab_slices // 2, high - self.slab_slices))
            stop = min(high, start + self.slab_slices)
        crop = source.cut((start, stop, box.y0, box.y1, box.x0, box.x1))
        return TextPart(text=f"slice {box.z}, closer:"), VisualPart(crop=crop)


class Zoom(CropTool):
    """Look closer at a box of what is shown, within the bounds of the tool that MedVR's models call.

    It is cut from the original at full resolution. The slice need not be named where one is shown.

    Source:
        Jiang et al. 2026, MedVR, arXiv:2604.08203; bounds as in DeepEyes (github Visual-Agent/DeepEyes
        @6c5e796): a shorter side above 30 pixels, an aspect ratio of at most 100.
    """

    name: ClassVar[str] = "zoom"
    description: ClassVar[str] = "Look closer at a part of the image. The box is given as x0, y0, x1, y1."
    schema: ClassVar[Mapping[str, Any]] = _schema(["box"], box=_coordinates(4), label=_LABEL, slice=_SLICE)
    unit: ClassVar[str] = "pixels"

    def __init__(
        self,
        view: View,
        encoder_input: EncoderInput | None = None,
        *,
        slab_slices: Annotated[int, Ge(1)] = 16,
        smallest_side: Annotated[int, Ge(SMALLEST_CROP_VOXELS)] = 31,
        largest_aspect: Annotated[float, Ge(1)] = 100.0,
    ) -> None:
        """Set the bounds.

        Args:
            view: whose box convention is spoken.
            encoder_input: what the encoder takes, where that is known.
            slab_slices: how many slices are shown around the named one where a whole volume was.
            smallest_side: voxels that the shorter side of a box needs.
            largest_aspect: how many times longer the other side may be.

        Raises:
            RecipeError: if the encoder resamples to a spacing of its own, so that a crop is shown no larger.
        """
        if encoder_input is not None and encoder_input.spacing_mm_zyx is not None:
            steps = " x ".join(f"{step:g}" for step in encoder_input.spacing_mm_zyx)
            raise RecipeError(
                f"zoom: the encoder shows everything at a spacing of {steps} mm, so a crop is shown no "
                "larger than before. Leave out its spacing_mm_zyx, or use tool 'crop'."
            )
        super().__init__(view, slab_slices=slab_slices)
        self.smallest_side = smallest_side
        self.largest_aspect = largest_aspect

    def __call__(self, arguments: Mapping[str, Any], prompt: Prompt) -> tuple[Part, ...]:
        crops = prompt.crops()
        if "slice" not in arguments and len(crops) == 1 and crops[0].is_slice:
            arguments = {**arguments, "slice": _depth(crops[0])[0]}
        tag, shown = super().__call__(arguments, prompt)
        assert isinstance(shown, VisualPart)
        _, _, y0, y1, x0, x1 = read_geometry(shown.crop.volume).box_of(shown.crop)
        shorter, longer = sorted((y1 - y0, x1 - x0))
        if longer > self.largest_aspect * shorter:
            raise ValueError(
                f"the box {list(arguments['box'])!r} is too narrow: {x1 - x0} x {y1 - y0} pixels; one side "
                f"may be {self.largest_aspect:g} times the other"
            )
        return tag, shown


class Measure(Tool):
    """Measure the distance between two points on a slice, voxel centre to voxel centre."""

    name: ClassVar[str] = "measure"
    description: ClassVar[str] = "Measure the distance in mm between two points x, y on a slice."
    schema: ClassVar[Mapping[str, Any]] = _schema(
        ["slice", "from", "to"], **{"slice": _SLICE, "from": _coordinates(2), "to": _coordinates(2)}
    )

    def __init__(self, view: View) -> None:
        """Take the view whose coordinates are spoken."""
        self.view = view

    def __call__(self, arguments: Mapping[str, Any], prompt: Prompt) -> tuple[Part, ...]:
        source, flat = _shown_slice(arguments, self.schema, prompt)
        ends = [_on_slice(self.view, flat, _numbers(arguments, name, 2) * 2) for name in ("from", "to")]
        if ends[0].z != ends[1].z:
            raise ValueError(f"the points must lie on one slice, got {ends[0].z} and {ends[1].z}")
        _, step_y_mm, step_x_mm = read_geometry(source.volume).spacing_mm_zyx
        distance_mm = math.hypot((ends[1].y0 - ends[0].y0) * step_y_mm, (ends[1].x0 - ends[0].x0) * step_x_mm)
        return (TextPart(text=f"{distance_mm:.1f} mm"),)


def _shown_slice(
    arguments: Mapping[str, Any], schema: Mapping[str, Any], prompt: Prompt
) -> tuple[Crop, Crop]:
    """Return the crop of the prompt that shows the named slice, and that slice of it alone.

    Where slices are tiles of one picture, the box alone names one: the picture is returned twice.
    """
    tiled = all(map(_is_tiled, prompt.crops()))
    unknown = [name for name in arguments if name not in schema["properties"]]
    wanted = [*schema["required"], "slice"] if not tiled else set(schema["required"]) - {"slice"}
    absent = [name for name in wanted if name not in arguments]
    if unknown or absent:
        raise ValueError(f"takes {', '.join(schema['properties'])}; unknown: {unknown}, missing: {absent}")
    number = _whole(arguments, "volume") if "volume" in arguments else 1
    volumes = list(dict.fromkeys(crop.volume for crop in prompt.crops()))
    if not 1 <= number <= len(volumes):
        raise ValueError(f"volume {number} is not shown; shown: 1 to {len(volumes)}")
    crops = [crop for crop in prompt.crops() if crop.volume == volumes[number - 1]]
    if tiled:
        return crops[0], crops[0]
    z = _whole(arguments, "slice")
    holding = [crop for crop in crops if _depth(crop)[0] <= z < _depth(crop)[1]]
    if not holding:
        spans = (_depth(crop) for crop in crops)
        shown = ", ".join(str(low) if high - low == 1 else f"{low} to {high - 1}" for low, high in spans)
        raise ValueError(f"slice {z} is not shown; shown: {shown}")
    source = min(holding, key=lambda crop: _depth(crop)[1] - _depth(crop)[0])
    _, _, y0, y1, x0, x1 = read_geometry(source.volume).box_of(source)
    if source.drawing is not None and source.drawing.axis:
        raise ValueError("boxes have no meaning in a projection")
    return source, source.cut((z, z + 1, y0, y1, x0, x1))


def _on_slice(view: View, flat: Crop, box: Sequence[float]) -> Box:
    result = view.to_source(VisualPart(crop=flat), box)
    if result is None:
        raise ValueError("boxes have no meaning in what is shown")
    return result


def _is_tiled(crop: Crop) -> bool:
    return crop.drawing is not None and crop.drawing.kind == "tiles"


def _depth(crop: Crop) -> tuple[int, int]:
    """Return the first slice of a crop and the one after its last."""
    return read_geometry(crop.volume).box_of(crop)[:2]


def _whole(arguments: Mapping[str, Any], name: str) -> int:
    value = arguments[name]
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} must be a whole number, got {value!r}")
    return value


def _numbers(arguments: Mapping[str, Any], name: str, count: int) -> list[float]:
    value = arguments[name]
    if (
        not isinstance(value, Sequence)
        or isinstance(value, str)
        or len(value) != count
        or any(isinstance(item, bool) or not isinstance(item, int | float) for item in value)
        or not all(abs(item) < _BEYOND for item in value)  # NaN too
    ):
        raise ValueError(f"{name} must be a list of {count} numbers, got {value!r}")
    return [float(item) for item in value]
