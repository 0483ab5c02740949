"""Task `zoom-choice`: a question that is answered after a closer look; what a cold start learns."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le

from evidcore.builtin.choice import Choice
from evidcore.case import Box, Case, Prompt, Turn, VisualPart
from evidcore.contracts import Tool, View
from evidcore.errors import DataError
from evidcore.volume.reading import read_geometry
from evidcore_plugin_medvr.pointing import called, shown_slices, square_around


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
        thought: as of `choice`.
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
        thought: Literal["verdicts", "answer"] = "verdicts",
        questions_per_case: Annotated[int, Ge(0)] = 1,
        training_questions: Literal["drawn", "given"] = "given",
        permute: bool = True,
    ) -> None:
        super().__init__(
            think=think,
            thought=thought,
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
        _, height, width = read_geometry(parts[z].crop.volume).shape_zyx
        side = round(rng.uniform(self.smallest_side, self.largest_side) * min(height, width))
        y0, x0 = rng.randint(0, height - side), rng.randint(0, width - side)
        return Box(z=z, y0=y0, y1=y0 + side, x0=x0, x1=x0 + side)
