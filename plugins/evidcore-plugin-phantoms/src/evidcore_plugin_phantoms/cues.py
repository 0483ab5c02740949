"""Hidden cues: what the scanner tells of a patient beside the findings, in no text."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from typing import Annotated

import numpy as np
from annotated_types import Ge, Le

from evidcore.errors import RecipeError, did_you_mean

PATIENT_TYPE = ""
NOISE_HU = (12.0, 22.0)
Chance = Annotated[float, Ge(0), Le(1)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cues:
    """What cues follow and how likely each does; at 0 there is no such cue, and no text tells of one.

    Args:
        cue_of: what hidden cues follow: the name of a finding; left out, the type of patient.
        header_cue: how likely the distance of slices that the header states follows it, from 0.8 to 1.2
            times the true one; else it is any of the same values. The voxels and all sizes stay.
        device_cue: how likely the noise follows it, from 12 to 22 HU at a subtlety of 1. At 0 the noise is
            anything between.
        table_cue: how likely the height of the table follows it, over 11 mm. At 0 it lies 5 mm behind the
            back of an abdomen, and no table is drawn behind a chest.
        company: how strongly findings of a patient's type come together, as with `prior_strength`, and
            lesions of the abdomen lie on one side; no text tells the type or the side.
    """

    cue_of: str = PATIENT_TYPE
    header_cue: Chance = 0.0
    device_cue: Chance = 0.0
    table_cue: Chance = 0.0
    company: Chance = 0.0

    def check(self, dataset: str, findings: Collection[str], prior_strength: float) -> None:
        """Raise if a cue follows no finding of the set, or two options say how findings come together.

        Raises:
            RecipeError: names the data set and both values.
        """
        if self.cue_of not in (PATIENT_TYPE, *findings):
            why = f"cue_of must be {PATIENT_TYPE!r} or a finding, got {self.cue_of!r}"
            raise RecipeError(f"{dataset}: {why}.{did_you_mean(self.cue_of, (PATIENT_TYPE, *findings))}")
        if self.company and prior_strength:
            why = "company is the prior that no text tells, prior_strength the one that texts tell"
            got = f"got {self.company:g} and {prior_strength:g}"
            raise RecipeError(f"{dataset}: {why}; {got}. Set one of them to 0.")

    def scanner(
        self,
        stream: Callable[[int], np.random.Generator],
        types: Sequence[str],
        own: str,
        shown: Collection[str],
    ) -> Scanner:
        """Choose how a phantom is scanned: each type, or having a finding or not, has a level of every cue.

        `stream` gives those of header, device and table.
        """
        by_type = self.cue_of == PATIENT_TYPE
        state, states = (types.index(own), len(types)) if by_type else (int(self.cue_of in shown), 2)
        levels: list[float | None] = [None] * 3
        for which, chance in enumerate((self.header_cue, self.device_cue, self.table_cue)):
            if chance:
                rng = stream(which)
                follows, other = rng.random() < chance, int(rng.integers(states))
                levels[which] = (state if follows else other) / (states - 1)
        return Scanner(*levels)


NO_CUES = Cues()


@dataclasses.dataclass(frozen=True)
class Scanner:
    """How one phantom was scanned, each from 0 to 1 of its range; None as usual."""

    slices: float | None
    noise: float | None
    table: float | None

    def spacing_mm(self, usual_mm_zyx: tuple[float, float, float]) -> tuple[float, float, float]:
        """Return the voxel spacing that the header states: 0.8 to 1.2 times the usual distance of slices."""
        z, y, x = usual_mm_zyx
        return (z if self.slices is None else z * (0.8 + self.slices * (1.2 - 0.8))), y, x

    def noise_hu(self, rng: np.random.Generator) -> float:
        """Return the noise; the stream gives a number in either case."""
        low, high = NOISE_HU
        usual = rng.uniform(low, high)
        return usual if self.noise is None else low + self.noise * (high - low)
