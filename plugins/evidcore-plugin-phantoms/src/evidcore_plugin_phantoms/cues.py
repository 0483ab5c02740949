"""Hidden cues: what the scanner tells of a patient beside the findings, in no text."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

import numpy as np

from evidcore.errors import RecipeError, did_you_mean

PATIENT_TYPE = ""
SLICE_SHARE = (0.8, 1.2)  # times the usual distance of slices
NOISE_HU = (12.0, 22.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cues:
    """What cues follow and how likely each does; at 0 there is no such cue."""

    cue_of: str = PATIENT_TYPE  # or the name of a finding
    header_cue: float = 0.0
    device_cue: float = 0.0
    table_cue: float = 0.0
    company: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scanner:
    """How one phantom was scanned, each from 0 to 1 of its range; None as usual."""

    slices: float | None
    noise: float | None
    table: float | None

    def spacing_mm(self, usual_mm_zyx: tuple[float, float, float]) -> tuple[float, float, float]:
        """Return the voxel spacing that the header states."""
        z, y, x = usual_mm_zyx
        return (z if self.slices is None else z * _between(SLICE_SHARE, self.slices)), y, x

    def noise_hu(self, rng: np.random.Generator) -> float:
        """Return the noise; the stream gives a number in either case."""
        usual = rng.uniform(*NOISE_HU)
        return usual if self.noise is None else _between(NOISE_HU, self.noise)


def check(
    dataset: str, findings: Collection[str], cue_of: str, company: float, prior_strength: float
) -> None:
    """Raise if a cue follows no finding of the set, or two options say how findings come together.

    Raises:
        RecipeError: names the data set and both values.
    """
    if cue_of not in (PATIENT_TYPE, *findings):
        raise RecipeError(
            f"{dataset}: cue_of must be {PATIENT_TYPE!r} or a finding, got {cue_of!r}."
            f"{did_you_mean(cue_of, (PATIENT_TYPE, *findings))}"
        )
    if company and prior_strength:
        raise RecipeError(
            f"{dataset}: company is the prior that no text tells, prior_strength the one that texts "
            f"tell; got {company:g} and {prior_strength:g}. Set one of them to 0."
        )


def scanner(
    cues: Cues, streams: Sequence[np.random.Generator], types: Sequence[str], own: str, shown: Collection[str]
) -> Scanner:
    """Choose how a phantom is scanned: by his type or by a finding. Each has a level of its own of every cue.

    Args:
        cues: what follows what.
        streams: one for each of header, device and table.
        types: of patients.
        own: his type.
        shown: the findings that he shows.
    """
    by_type = cues.cue_of == PATIENT_TYPE
    state, states = (types.index(own), len(types)) if by_type else (int(cues.cue_of in shown), 2)
    slices, noise, table = (
        _level(rng, state, states, chance) if chance else None
        for rng, chance in zip(streams, (cues.header_cue, cues.device_cue, cues.table_cue), strict=True)
    )
    return Scanner(slices=slices, noise=noise, table=table)


def _level(rng: np.random.Generator, state: int, states: int, chance: float) -> float:
    follows, other = rng.random() < chance, int(rng.integers(states))
    return (state if follows else other) / (states - 1)


def _between(ends: tuple[float, float], share: float) -> float:
    low, high = ends
    return low + share * (high - low)
