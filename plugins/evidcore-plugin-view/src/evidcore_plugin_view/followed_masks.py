"""Masks that a run's segmenters make of answers' boxes, made in a process of its own: segmenters need torch.

It makes one mask at a time, and the one that was asked for last comes first.
"""

from __future__ import annotations

import base64
import dataclasses
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from evidcore_plugin_hub.worker import Broken, Raised

from evidcore.case import Box
from evidcore.data.boxes import Mask
from evidcore.registry import offers
from evidcore_plugin_view.asking import Asking, Errands

_MOST_WAITING = 4  # those that were asked for before are made when they are asked for again


@dataclasses.dataclass(frozen=True, kw_only=True)
class FollowRequest:
    """The boxes of one answer or rollout, and whose they are.

    Args:
        run: by the name that references use.
        kind: "answers" or "rollouts".
        stage: that wrote the line.
        task: of the question.
        case: its id.
        prompt: its id.
        image: URI of the volume.
        slice: that the answer names.
        boxes: in voxels of the volume.
    """

    run: str
    kind: str
    stage: str
    task: str
    case: str
    prompt: str
    image: str
    slice: int | None
    boxes: tuple[Box, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class FollowedMask:
    """What became of some boxes: a mask, or a sentence that says why there is none.

    Args:
        by: the segmenter, and whom it serves in the run.
        fault: why there is no mask; empty where there is one.
        shape_zyx: of the volume.
        start_zyx: the first voxel of `part`.
        part: the mask without what lies around it, bool, shape (z, y, x).
    """

    by: str = ""
    fault: str = ""
    shape_zyx: tuple[int, int, int] = (0, 0, 0)
    start_zyx: tuple[int, int, int] = (0, 0, 0)
    part: Mask | None = None

    @classmethod
    def of(cls, mask: Mask, by: str) -> FollowedMask:
        """Keep a mask, shape (z, y, x)."""
        depth, height, width = mask.shape
        spans = [np.flatnonzero(mask.any(axis=others)) for others in ((1, 2), (0, 2), (0, 1))]
        ends = [(int(span[0]), int(span[-1]) + 1) if len(span) else (0, 0) for span in spans]
        z, y, x = (slice(*pair) for pair in ends)
        return cls(
            by=by,
            shape_zyx=(depth, height, width),
            start_zyx=(ends[0][0], ends[1][0], ends[2][0]),
            part=mask[z, y, x].copy(),
        )

    def mask(self) -> Mask | None:
        """Return the mask on the volume's grid, shape (z, y, x); None where there is none."""
        if self.part is None:
            return None
        whole = np.zeros(self.shape_zyx, dtype=np.bool_)
        inside = (
            slice(start, start + count) for start, count in zip(self.start_zyx, self.part.shape, strict=True)
        )
        whole[tuple(inside)] = self.part
        return whole

    def to_json(self) -> dict[str, Any]:
        """Return it as one process tells it to the other."""
        told = {name: getattr(self, name) for name in ("by", "fault", "shape_zyx", "start_zyx")}
        if self.part is not None:
            told["part_zyx"] = self.part.shape
            told["bits"] = base64.b64encode(zlib.compress(np.packbits(self.part).tobytes())).decode()
        return told

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> FollowedMask:
        """Read what `to_json` gave."""
        part = None
        if "bits" in told:
            bits = np.frombuffer(zlib.decompress(base64.b64decode(told["bits"])), dtype=np.uint8)
            shape = told["part_zyx"]
            part = np.unpackbits(bits, count=int(np.prod(shape))).astype(np.bool_).reshape(shape)
        shape_zyx, start_zyx = tuple(told["shape_zyx"]), tuple(told["start_zyx"])
        return cls(by=told["by"], fault=told["fault"], shape_zyx=shape_zyx, start_zyx=start_zyx, part=part)


class FollowedMasks:
    """Has boxes followed in the background; what was made is kept as long as the viewer runs."""

    def __init__(self, folder: Path) -> None:
        """Take the folder of a run; nothing is started before boxes are to be followed."""
        self._folder = folder
        self._found: dict[FollowRequest, FollowedMask] = {}
        self._ask = Asking()
        self._errands = Errands(self._follow, most=_MOST_WAITING, newest_first=True)

    def get(self, wanted: FollowRequest) -> FollowedMask | None:
        """Return what became of some boxes; None while they are followed, which begins if it has not."""
        found = self._found.get(wanted)
        if found is None:
            self._errands.add(wanted)
        return found

    def close(self) -> None:
        """End the process, whatever it does."""
        self._errands.close(self._ask.close)

    def _follow(self, wanted: FollowRequest) -> None:
        """Have a process follow some boxes; one that ends meanwhile makes nothing of them."""
        try:
            found = FollowedMask.from_json(self._ask("follow", self._folder, wanted))
        except (Broken, Raised) as cause:
            status = cause.status if isinstance(cause, Broken) else 1
            found = FollowedMask(
                fault=f"The process of the segmenter ended with status {status}, before it had followed the "
                "boxes. Start `evid view` again to try again."
            )
        if not self._errands.is_closed:
            self._found[wanted] = found


def names_segmenter(recipe: Mapping[str, Any]) -> bool:
    """Tell whether a resolved recipe has a segmenter: as a service, or in the table of a stage."""
    if any(table.get("kind") == "segmenter" for table in recipe.get("service", {}).values()):
        return True
    installed = {offer.name for offer in offers("segmenter")}
    return _holds(recipe.get("stage", ()), installed)


def _holds(value: Mapping[str, Any] | Sequence[Any], installed: set[str]) -> bool:
    """Tell whether nested tables hold one of a segmenter, which may be missing here."""
    if isinstance(value, Mapping):
        if value.get("use") in installed:
            return True
        return any(
            _holds(inner, installed) or (key == "segmenter" and isinstance(inner, Mapping))
            for key, inner in value.items()
            if isinstance(inner, Mapping | list)
        )
    return any(_holds(inner, installed) for inner in value if isinstance(inner, Mapping | list))
