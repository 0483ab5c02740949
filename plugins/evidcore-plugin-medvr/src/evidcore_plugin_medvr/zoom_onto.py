"""Task `zoom-onto`: look closer at what is named; how a model learns where things lie in a picture."""

import dataclasses
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from annotated_types import Ge, Gt, Le

from evidcore.api import Box, Case, DataError, Prompt, Tool, View
from evidcore.case import Turn
from evidcore_plugin_medvr.free_text import FreeText
from evidcore_plugin_medvr.pointing import called, shown_slices, square_around


class ZoomOnto(FreeText):
    """Ask for a closer look at structures that a shown slice shows; the answer names what is there.

    That is the structure, or the finding whose mask is the same: of a "lesion" which one it is.

    The gold answer calls the tool with the smallest square around the structure, then answers. Published
    models have learnt such grounding from pictures of all kinds; one that is trained from nothing learns it
    here, from patients of its own whose structures have masks. The seed draws which are asked for.

    Args:
        view: whose box convention is spoken.
        cache_folder: keeps what was measured of masks.
        tool: what is called, with `slice` and `box`.
        structures: names of masks, of those that a case has; empty: all that are no findings.
        asked_per_case: how many of them are asked for at a time; 0 = all.
        smallest_side: of a box, as a share of the shorter side of the slice.
        step: coordinates are rounded down to multiples of this.

    Source:
        A departure from MedVR (arXiv:2604.08203), whose model has learnt to point before.
    """

    def __init__(
        self,
        view: View,
        cache_folder: Path,
        *,
        tool: Tool,
        structures: tuple[str, ...] = (),
        asked_per_case: Annotated[int, Ge(0)] = 1,
        smallest_side: Annotated[float, Gt(0), Le(1)] = 0.1,
        step: Annotated[int, Ge(1)] = 1,
    ) -> None:
        super().__init__(think=False)
        self.view, self.tool, self._cache_folder = view, tool, cache_folder
        self.structures, self.asked_per_case = structures, asked_per_case
        self.smallest_side, self.step = smallest_side, step

    def prompts(self, case: Case, view: View, seed: int) -> Sequence[Prompt]:
        """Ask for some of the structures, once each."""
        findings = {finding.name for finding in case.findings}
        wanted = self.structures or case.masks.keys() - findings
        names = [name for name in case.masks if name in wanted]
        if self.asked_per_case:
            rng = random.Random(f"zoom-onto/{seed}/{case.id}")
            names = rng.sample(names, min(self.asked_per_case, len(names)))
        seen = {case.masks[name]: name for name in case.masks if name in findings}
        right = {name: seen.get(case.masks[name], name) for name in names}
        put = [(name, f"Look closer at the {name}.", [text]) for name, text in right.items()]
        asked = self.put(case, view, put)
        return [dataclasses.replace(one, task="zoom-onto") for one in asked if self._square(one) is not None]

    def gold_turns(self, prompt: Prompt) -> Sequence[Turn]:
        box = self._square(prompt)
        if box is None:
            raise DataError(f"zoom-onto: no slice of prompt {prompt.id!r} shows what it asks for.")
        part = shown_slices(prompt, "zoom-onto")[box.z]
        return [called(self.tool, self.view, part, box, prompt, self.step)]

    def _square(self, prompt: Prompt) -> Box | None:
        parts = shown_slices(prompt, "zoom-onto")
        name = prompt.reference["answers"][0]
        return square_around(prompt.case, [name], parts, self.smallest_side, self._cache_folder)
