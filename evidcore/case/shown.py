"""What a model is shown and asked: crops of volumes, text, prompts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, cast
from urllib.parse import parse_qsl, urlencode

from evidcore.case.scan import Case, VolumeRef


@dataclasses.dataclass(frozen=True, kw_only=True)
class Crop:
    """What an encoder is given: a whole volume, a part of one, or an empty one of the same grid.

    `uri()` is the string that travels through trainers in place of pixels.
    """

    volume: VolumeRef
    box_zyx: tuple[int, int, int, int, int, int] | None = None  # z0, z1, y0, y1, x0, x1 in voxels
    blank: bool = False  # every voxel air: the grounding audit's empty volume

    def uri(self) -> str:
        """Return the string form; `parse_uri` is its inverse."""
        marks = self.volume.marks()
        if self.box_zyx is not None:
            marks["box"] = ",".join(str(edge) for edge in self.box_zyx)
        if self.blank:
            marks["blank"] = "1"
        return f"{self.volume.path}#{urlencode(marks, safe=',')}"

    @classmethod
    def parse_uri(cls, uri: str) -> Crop:
        """Read back what `uri()` wrote.

        Raises:
            ValueError: if the text is not such a string; names it.
        """
        path, hash_sign, tail = uri.rpartition("#")
        if not hash_sign:
            raise ValueError(f"not a crop: {uri!r}; write it with Crop.uri()")
        marks = dict(parse_qsl(tail))
        try:
            volume = VolumeRef.from_marks(path, marks)
            box = tuple(int(edge) for edge in marks["box"].split(",")) if "box" in marks else None
        except ValueError as cause:
            raise ValueError(f"not a crop: {uri!r} ({cause}); write it with Crop.uri()") from cause
        return cls(volume=volume, box_zyx=cast(Any, box), blank="blank" in marks)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextPart:
    """Text shown to the model."""

    text: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class VisualPart:
    """Pixels shown to the model, by reference."""

    crop: Crop


Part = TextPart | VisualPart


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prompt:
    """What the model is asked about one case, and what a right answer is judged against."""

    id: str  # unique within a task and split
    case: Case
    task: str  # the task's name in the recipe
    parts: tuple[Part, ...]  # the user turn
    reference: Mapping[str, Any] = dataclasses.field(
        default_factory=dict
    )  # the task's own: options, letter, ...

    def crops(self) -> tuple[Crop, ...]:
        """Return what is shown, in order."""
        return tuple(part.crop for part in self.parts if isinstance(part, VisualPart))

    def written(self) -> str:
        """Return the user turn as text, `<image>` where pixels are shown."""
        return "".join(part.text if isinstance(part, TextPart) else "<image>" for part in self.parts)

    def words(self) -> str:
        """Return the user turn without what is shown."""
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))

    def showing(self, crops: Sequence[Crop]) -> Prompt:
        """Return the same question over other pixels; the case that it is judged against stays.

        Raises:
            ValueError: if the number of crops differs.
        """
        if len(crops) != len(self.crops()):
            raise ValueError(f"prompt {self.id!r} shows {len(self.crops())} crops, got {len(crops)}")
        fresh = iter(crops)
        parts = tuple(
            VisualPart(crop=next(fresh)) if isinstance(part, VisualPart) else part for part in self.parts
        )
        return dataclasses.replace(self, parts=parts)
