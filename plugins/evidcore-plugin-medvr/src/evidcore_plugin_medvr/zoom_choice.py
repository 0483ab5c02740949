"""Task `zoom-choice`: a question that is answered after a closer look; what a cold start learns."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le

from evidcore.builtin.choice import Choice
from evidcore.case import Action, Box, Case, Prompt, Turn, VisualPart
from evidcore.contracts import Tool, View
from evidcore.errors import DataError
from evidcore.geometry.boxes import is_slice
from evidcore.geometry.target import Rule, gold_slice, measure
from evidcore.volume.reading import read_geometry
from evidcore_plugin_medvr.rollout import CLOSE, OPEN

RULE = Rule(parts=(), smallest_part=0.0)


class ZoomChoice(Choice):
    """Task `choice`, whose gold answers call a tool before they answer.

    It teaches the form of a call, and with random boxes nothing of where to look. The first turn calls the
    tool, `{"name": "zoom", "arguments": {"slice": 1, "box": [x0, y0, x1, y1]}}`; then stands what it shows,
    and the right letter. Boxes are squares on one of the single slices that are shown.

    Args:
        view: whose box convention is spoken.
        cache_folder: keeps what was measured of masks.
        tool: what is called, with `slice` and `box`.
        boxes: "random" lie anywhere, by the seed; "findings" around what the masks of the present findings
            show, on the slice that shows most: the ceiling, which needs annotation.
        smallest_side: of a box, as a share of the shorter side of the slice.
        largest_side: of a box; those around findings are of the smallest that holds them.
        step: coordinates are rounded down to multiples of this, so that a small vocabulary holds them.
        think: as of `choice`, in the last turn.
        questions_per_case: as of `choice`.
        training_questions: as of `choice`.
        permute: as of `choice`.

    Source:
        A departure from MedVR (arXiv:2604.08203), which trains by rewards alone, from a model that calls
        tools already.
    """

    def __init__(
        self,
        view: View,
        cache_folder: Path,
        *,
        tool: Tool,
        boxes: Literal["random", "findings"] = "random",
        smallest_side: Annotated[float, Gt(0), Le(1)] = 0.1,
        largest_side: Annotated[float, Gt(0), Le(1)] = 0.5,
        step: Annotated[int, Ge(1)] = 1,
        think: bool = False,
        questions_per_case: Annotated[int, Ge(0)] = 1,
        training_questions: Literal["drawn", "given"] = "given",
        permute: bool = True,
    ) -> None:
        super().__init__(
            think=think,
            questions_per_case=questions_per_case,
            training_questions=training_questions,
            permute=permute,
        )
        self.view, self.tool, self.boxes, self._cache_folder = view, tool, boxes, cache_folder
        self.step = step
        self.smallest_side, self.largest_side = smallest_side, max(smallest_side, largest_side)

    def prompts(self, case: Case, view: View, seed: int) -> Sequence[Prompt]:
        """Ask what `choice` asks; the seed draws the boxes too."""
        return [
            dataclasses.replace(one, task="zoom-choice", reference={**one.reference, "boxes_seed": seed})
            for one in super().prompts(case, view, seed)
        ]

    def gold_turns(self, prompt: Prompt) -> Sequence[Turn]:
        """Return the call and what the tool shows.

        Raises:
            DataError: if no single slice is shown, or no box around the findings can be told.
        """
        parts = shown_slices(prompt, "zoom-choice")
        if self.boxes == "random":
            box = self._anywhere(prompt, parts)
        else:
            case = prompt.case
            names = [name for name in case.present() if name in case.masks]
            found = square_around(case, names, parts, self.smallest_side, self._cache_folder)
            if found is None:
                raise DataError(
                    f"zoom-choice: case {case.id!r} has no mask of a present finding on a slice that is "
                    "shown, so no box lies around one. Use boxes = 'random'."
                )
            box = found
        return [called(self.tool, self.view, parts[box.z], box, prompt, self.step)]

    def _anywhere(self, prompt: Prompt, parts: Mapping[int, VisualPart]) -> Box:
        rng = random.Random(f"zoom-choice/{prompt.reference['boxes_seed']}/{prompt.id}")
        z = rng.choice(sorted(parts))
        height, width = _size_yx(parts[z])
        side = round(rng.uniform(self.smallest_side, self.largest_side) * min(height, width))
        y0, x0 = rng.randint(0, height - side), rng.randint(0, width - side)
        return Box(z=z, y0=y0, y1=y0 + side, x0=x0, x1=x0 + side)


def shown_slices(prompt: Prompt, task: str) -> dict[int, VisualPart]:
    """Return the single slices that a prompt shows, by their number.

    Raises:
        DataError: if it shows none; names the prompt and `task`.
    """
    parts = {
        part.crop.box_zyx[0]: part
        for part in prompt.parts
        if isinstance(part, VisualPart) and is_slice(part.crop) and part.crop.box_zyx is not None
    }
    if not parts:
        raise DataError(
            f"{task}: prompt {prompt.id!r} shows no single slice, and a box lies on one. Use "
            "view = { use = 'slices' }."
        )
    return parts


def square_around(
    case: Case,
    names: Sequence[str],
    parts: Mapping[int, VisualPart],
    smallest_side: float,
    cache_folder: Path,
) -> Box | None:
    """Return the smallest square around what some masks show on the slice that shows most of them.

    Args:
        case: whose masks.
        names: of the masks, together.
        parts: the slices that are shown.
        smallest_side: of the square, as a share of the shorter side of the slice.
        cache_folder: keeps what was measured of masks.

    Returns:
        The square, moved into the slice; None where no shown slice shows any of the masks.
    """
    found = measure(case, names, RULE, cache_folder) if names else None
    z = None if found is None else gold_slice(found.areas, parts, 1)
    if found is None or z is None:
        return None
    return square(found.boxes[z], z, _size_yx(parts[z]), smallest_side)


def square(boxes: Sequence[Box], z: int, size_yx: tuple[int, int], smallest_side: float) -> Box:
    """Return the smallest square around boxes on a slice, moved into it, of at least a share of its side."""
    height, width = size_yx
    y0, y1 = min(one.y0 for one in boxes), max(one.y1 for one in boxes)
    x0, x1 = min(one.x0 for one in boxes), max(one.x1 for one in boxes)
    least = round(smallest_side * min(height, width))
    side = min(max(y1 - y0, x1 - x0, least), height, width)
    y0 = min(max(0, (y0 + y1 - side) // 2), height - side)
    x0 = min(max(0, (x0 + x1 - side) // 2), width - side)
    return Box(z=z, y0=y0, y1=y0 + side, x0=x0, x1=x0 + side)


def called(tool: Tool, view: View, part: VisualPart, box: Box, prompt: Prompt, step: int) -> Turn:
    """Return the turn in which `tool` is called with a box of a shown slice, and what it shows.

    Coordinates are rounded down to multiples of `step`.
    """
    shown = view.from_source(part, box)
    assert shown is not None  # a single slice has a box convention
    arguments = {"slice": box.z, "box": [round(edge) // step * step for edge in shown]}
    call = json.dumps({"name": tool.name, "arguments": arguments})
    action = Action(tool=tool.name, arguments=arguments)
    return Turn(text=f"{OPEN}{call}{CLOSE}", actions=(action,), reply=tool(arguments, prompt))


def _size_yx(part: VisualPart) -> tuple[int, int]:
    _, height, width = read_geometry(part.crop.volume).shape_zyx
    return height, width
