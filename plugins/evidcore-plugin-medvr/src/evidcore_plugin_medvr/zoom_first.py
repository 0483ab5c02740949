"""Tasks `zoom-choice` and `zoom-free-text`: a question that is answered after a closer look; a cold start."""

import dataclasses
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le

from evidcore.api import Box, Case, DataError, InlineOptions, Prompt, Tool, View
from evidcore.builtin.choice import Choice
from evidcore.case import Turn
from evidcore.data import read_geometry
from evidcore_plugin_medvr.free_text import FreeText
from evidcore_plugin_medvr.pointing import called, shown_slices, square_around

SEED = "boxes_seed"  # in a prompt's reference


@dataclasses.dataclass(frozen=True, kw_only=True)
class FirstLook:
    """Where gold answers look before they answer. Boxes are squares on one of the single slices shown.

    Attributes:
        boxes: "random" lie anywhere, by the seed; "findings" around what the masks of the present findings
            show, on the slice that shows most: the ceiling, which needs annotation.
        smallest_side: of a box, as a share of the shorter side of the slice.
        largest_side: of a box; those around findings are of the smallest that holds them.
        step: coordinates are rounded down to multiples of this, so that a small vocabulary holds them.
    """

    boxes: Literal["random", "findings"] = "random"
    smallest_side: Annotated[float, Gt(0), Le(1)] = 0.1
    largest_side: Annotated[float, Gt(0), Le(1)] = 0.5
    step: Annotated[int, Ge(1)] = 1

    def turn(self, prompt: Prompt, tool: Tool, view: View, cache_folder: Path) -> Turn:
        """Return the call and what the tool shows.

        Raises:
            DataError: if no single slice is shown, or no box around the findings can be told.
        """
        parts = shown_slices(prompt, prompt.task)
        case = prompt.case
        if self.boxes == "random":
            rng = random.Random(f"{prompt.task}/{prompt.reference[SEED]}/{prompt.id}")
            z = rng.choice(sorted(parts))
            _, height, width = read_geometry(parts[z].crop.volume).shape_zyx
            share = rng.uniform(self.smallest_side, max(self.smallest_side, self.largest_side))
            side = round(share * min(height, width))
            y0, x0 = rng.randint(0, height - side), rng.randint(0, width - side)
            box: Box | None = Box(z=z, y0=y0, y1=y0 + side, x0=x0, x1=x0 + side)
        else:
            names = [name for name in case.present() if name in case.masks]
            box = square_around(case, names, parts, self.smallest_side, cache_folder)
        if box is None:
            raise DataError(
                f"{prompt.task}: case {case.id!r} has no mask of a present finding on a slice that is "
                "shown, so no box lies around one. Use boxes = 'random'."
            )
        return called(tool, view, parts[box.z], box, prompt, self.step)


FIRST_LOOK = FirstLook()


class ZoomChoice(Choice):
    """Task `choice`, whose gold answers call a tool before they answer.

    It teaches the form of a call, and with random boxes nothing of where to look. The first turn calls the
    tool, `{"name": "zoom", "arguments": {"slice": 1, "box": [x0, y0, x1, y1]}}`; then stands what it shows,
    and the right letter.

    Args:
        view: whose box convention is spoken.
        cache_folder: keeps what was measured of masks.
        tool: what is called, with `slice` and `box`.
        look: see `FirstLook`.
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
        look: Annotated[FirstLook, InlineOptions] = FIRST_LOOK,
        think: bool = False,
        questions_per_case: Annotated[int, Ge(0)] = 1,
        training_questions: Literal["drawn", "given"] = "given",
        permute: bool = True,
    ) -> None:
        super().__init__(
            think=think, questions_per_case=questions_per_case, training_questions=training_questions,
            permute=permute,
        )  # fmt: skip
        self.view, self.tool, self.look, self._cache_folder = view, tool, look, cache_folder

    def prompts(self, case: Case, view: View, seed: int) -> Sequence[Prompt]:
        """Ask what `choice` asks; the seed draws the boxes too."""
        return _seeded(super().prompts(case, view, seed), "zoom-choice", seed)

    def gold_turns(self, prompt: Prompt) -> Sequence[Turn]:
        return [self.look.turn(prompt, self.tool, self.view, self._cache_folder)]


class ZoomFreeText(FreeText):
    """Task `free-text`, whose gold answers call a tool before they answer, as those of `zoom-choice` do.

    Args:
        view: whose box convention is spoken.
        cache_folder: keeps what was measured of masks.
        tool: what is called, with `slice` and `box`.
        look: see `FirstLook`.
        think: as of `free-text`, in the last turn.

    Source:
        See `zoom-choice`.
    """

    def __init__(
        self,
        view: View,
        cache_folder: Path,
        *,
        tool: Tool,
        look: Annotated[FirstLook, InlineOptions] = FIRST_LOOK,
        think: bool = False,
    ) -> None:
        super().__init__(think=think)
        self.view, self.tool, self.look, self._cache_folder = view, tool, look, cache_folder

    def prompts(self, case: Case, view: View, seed: int) -> Sequence[Prompt]:
        """Ask what `free-text` asks; the seed draws the boxes."""
        return _seeded(super().prompts(case, view, seed), "zoom-free-text", seed)

    def gold_turns(self, prompt: Prompt) -> Sequence[Turn]:
        return [self.look.turn(prompt, self.tool, self.view, self._cache_folder)]


def _seeded(prompts: Sequence[Prompt], task: str, seed: int) -> list[Prompt]:
    """Return prompts of a task, with the seed of their boxes."""
    return [dataclasses.replace(one, task=task, reference={**one.reference, SEED: seed}) for one in prompts]
