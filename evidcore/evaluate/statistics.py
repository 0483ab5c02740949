"""Intervals and tests in which a patient, not a question, is the unit that was sampled.

Questions on one patient are alike, so treating them as independent makes intervals too narrow. The bootstrap
resamples patients with all their questions; over several training runs it resamples seeds first. Under
`FEWEST_PATIENTS` patients no interval is given, because none could be trusted.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

FEWEST_PATIENTS = 20
DRAWS = 4000
_PLACES_AT_ONCE = 4_000_000  # bounds the memory of a bootstrap over many patients

Values = Sequence[float] | Float[np.ndarray[Any, Any], " value"]
Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Interval:
    """An estimate with the interval around it; `low` and `high` are None where `note` says why."""

    value: float
    low: float | None
    high: float | None
    values: int  # questions, or whatever was averaged
    patients: int
    note: str = ""

    def covers(self, value: float) -> bool:
        """Tell whether `value` lies inside; False where there is no interval."""
        return self.low is not None and self.high is not None and self.low <= value <= self.high

    @property
    def half_width(self) -> float | None:
        """Return half the interval's length, None where there is none."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2


def mean_interval(
    values: Values, patients: Sequence[Hashable], *, level: float = 0.95, draws: int = DRAWS, seed: int = 0
) -> Interval:
    """Estimate a mean over questions with a patient-clustered percentile bootstrap.

    Where all values are 0, or all are 1, resampling sees no spread; the exact binomial bound for as many
    patients stands in.

    Args:
        values: one per question.
        patients: whose question it is, one per value.
        level: share of intervals that hold the truth.
        draws: bootstrap samples.
        seed: of the bootstrap; equal seeds give equal intervals.

    Raises:
        ValueError: if there is no value, or the lengths differ.

    Source:
        Field & Welsh 2007, Bootstrapping clustered data, JRSS B 69 (cluster bootstrap).
    """
    return ratio_interval(values, np.ones(len(values)), patients, level=level, draws=draws, seed=seed)


def ratio_interval(
    numerators: Values,
    denominators: Values,
    patients: Sequence[Hashable],
    *,
    level: float = 0.95,
    draws: int = DRAWS,
    seed: int = 0,
) -> Interval:
    """Estimate sum of numerators over sum of denominators (an F1, say) with the same bootstrap.

    Raises:
        ValueError: if there is no value, the lengths differ, or the denominators sum to 0.
    """
    sums, totals = by_patient(numerators, patients), by_patient(denominators, patients)
    if not totals.sum() > 0:
        raise ValueError(f"the denominators of a ratio must sum to more than 0, got {totals.sum()}")
    value, count = float(sums.sum() / totals.sum()), len(totals)
    if count < FEWEST_PATIENTS:
        return too_few(value, len(numerators), count)
    if value in (0.0, 1.0) and ((sums == 0).all() or np.array_equal(sums, totals)):
        bound = ((1 - level) / 2) ** (1 / count)
        low, high = (bound, 1.0) if value == 1.0 else (0.0, 1 - bound)
        return Interval(
            value=value, low=low, high=high, values=len(numerators), patients=count,
            note="all values are equal: exact binomial bound over patients",
        )  # fmt: skip
    above, below = resampled([sums, totals], draws, np.random.default_rng(seed))
    drawn = above[below > 0] / below[below > 0]
    low, high = percentiles(drawn, level)
    return Interval(value=value, low=low, high=high, values=len(numerators), patients=count)


def paired_interval(
    first: Values,
    second: Values,
    patients: Sequence[Hashable],
    *,
    level: float = 0.95,
    draws: int = DRAWS,
    seed: int = 0,
) -> Interval:
    """Estimate the mean of first - second over the same questions.

    Raises:
        ValueError: if the lengths differ.
    """
    if len(first) != len(second):
        raise ValueError(f"a pair needs two values per question, got {len(first)} and {len(second)}")
    differences = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
    if len(differences) and np.ptp(differences) == 0 and len(set(patients)) >= FEWEST_PATIENTS:
        same = float(differences[0])
        return Interval(
            value=same, low=same, high=same, values=len(differences), patients=len(set(patients)),
            note="all differences are equal",
        )  # fmt: skip
    return mean_interval(differences, patients, level=level, draws=draws, seed=seed)


def hierarchical_interval(
    values: Values,
    seeds: Sequence[Hashable],
    patients: Sequence[Hashable],
    *,
    patients_shared: bool,
    level: float = 0.95,
    draws: int = DRAWS,
    seed: int = 0,
) -> Interval:
    """Estimate the mean over training seeds of the mean over questions, resampling seeds, then patients.

    Args:
        values: one per seed and question; for a comparison, the paired differences.
        seeds: which training run it comes from.
        patients: whose question it is.
        patients_shared: the seeds were tested on the same patients, so one draw of patients serves all of
            them; False where each seed generated its own.
        level: share of intervals that hold the truth.
        draws: bootstrap samples.
        seed: of the bootstrap.

    Raises:
        ValueError: if there is no value, the lengths differ, or shared patients are missing from a seed.

    Source:
        Davison & Hinkley 1997, Bootstrap Methods and their Application, section 3.8.
    """
    numbers = np.asarray(values, dtype=np.float64)
    if not len(numbers) == len(seeds) == len(patients):
        raise ValueError(
            f"lengths differ: {len(numbers)} values, {len(seeds)} seeds, {len(patients)} patients"
        )
    runs = sorted(set(seeds), key=str)
    picked = [np.array([item == run for item in seeds]) for run in runs]
    owners = [[patient for patient, here in zip(patients, mask, strict=True) if here] for mask in picked]
    sums = [by_patient(numbers[mask], owner) for mask, owner in zip(picked, owners, strict=True)]
    counts = [by_patient(np.ones(len(owner)), owner) for owner in owners]
    value = float(np.mean([part.sum() / count.sum() for part, count in zip(sums, counts, strict=True)]))
    fewest = min(len(count) for count in counts)
    total = len(set(patients)) if patients_shared else sum(len(count) for count in counts)
    if patients_shared and any(set(owner) != set(patients) for owner in owners):
        raise ValueError("patients_shared: every seed must be tested on the same patients, and they differ")
    if fewest < FEWEST_PATIENTS:
        return too_few(value, len(numbers), fewest)
    dice = np.random.default_rng(seed)
    places = dice.integers(len(runs), size=(draws, len(runs)))  # (draw, place) -> run
    drawn = np.zeros(draws)
    common = resampled([*sums, *counts], draws, dice) if patients_shared else None
    for place in range(len(runs)):
        for run in range(len(runs)):
            if common is not None:
                above, below = common[run], common[len(runs) + run]
            else:
                above, below = resampled([sums[run], counts[run]], draws, dice)
            drawn += np.where(places[:, place] == run, above / below, 0.0) / len(runs)
    low, high = percentiles(drawn, level)
    note = f"{len(runs)} seeds"
    return Interval(value=value, low=low, high=high, values=len(numbers), patients=total, note=note)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TTest:
    """A cluster-robust t test of a mean against 0."""

    value: float
    standard_error: float
    low: float
    high: float
    degrees_of_freedom: int
    p_value: float  # two-sided


def cluster_t(values: Values, patients: Sequence[Hashable], *, level: float = 0.95) -> TTest:
    """Test a mean over questions against 0 with patient-clustered standard errors.

    The variance is C/(C-1) · Σ_c (Σ_i in c (v_i - mean))² / n² over C patients; t has C - 1 degrees of
    freedom.

    Raises:
        ValueError: with fewer than two patients.

    Source:
        Cameron & Miller 2015, A practitioner's guide to cluster-robust inference, section II.
    """
    from scipy import stats

    sums, counts = by_patient(values, patients), by_patient(np.ones(len(values)), patients)
    clusters = len(counts)
    if clusters < 2:
        raise ValueError(f"a test over patients needs at least 2 of them, got {clusters}")
    mean = sums.sum() / counts.sum()
    scores = sums - mean * counts
    error = math.sqrt(clusters / (clusters - 1) * (scores**2).sum()) / counts.sum()
    reach = float(stats.t.ppf((1 + level) / 2, clusters - 1)) * error
    if error > 0:
        p_value = float(2 * stats.t.sf(abs(mean) / error, clusters - 1))
    else:
        p_value = 1.0 if mean == 0 else 0.0
    return TTest(
        value=float(mean), standard_error=error, low=float(mean - reach), high=float(mean + reach),
        degrees_of_freedom=clusters - 1, p_value=p_value,
    )  # fmt: skip


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust the p values of a table, so that one false claim in all of it stays as rare as in a single test.

    Source:
        Holm 1979, A simple sequentially rejective multiple test procedure, Scand. J. Statist. 6.
    """
    adjusted, largest = [0.0] * len(p_values), 0.0
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    for rank, place in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted


def by_patient(values: Values, patients: Sequence[Hashable]) -> Array:
    """Sum the values of each patient, in the order in which sorted names appear."""
    if len(values) != len(patients):
        raise ValueError(
            f"every value needs its patient, got {len(values)} values and {len(patients)} patients"
        )
    if not len(values):
        raise ValueError("nothing to average: 0 values")
    numbers = {patient: place for place, patient in enumerate(sorted(set(patients), key=str))}
    places: Int[np.ndarray[Any, Any], " value"] = np.array([numbers[patient] for patient in patients])
    sums = np.zeros(len(numbers))
    np.add.at(sums, places, np.asarray(values, dtype=np.float64))
    return sums


def resampled(columns: Sequence[Array], draws: int, dice: np.random.Generator) -> list[Array]:
    """Sum each column over patients drawn with replacement, the same ones for every column; shape (draw,)."""
    patients = len(columns[0])
    at_once = max(1, _PLACES_AT_ONCE // patients)
    pieces: list[list[Array]] = [[] for _ in columns]
    for start in range(0, draws, at_once):
        places = dice.integers(patients, size=(min(at_once, draws - start), patients))
        for column, piece in zip(columns, pieces, strict=True):
            piece.append(column[places].sum(axis=1))
    return [np.concatenate(piece) for piece in pieces]


def percentiles(drawn: Array, level: float) -> tuple[float, float]:
    """Return the ends of the middle `level` of what was drawn."""
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def too_few(value: float, values: int, patients: int) -> Interval:
    """Return an estimate without an interval, and say why there is none."""
    note = f"too few patients ({patients} of at least {FEWEST_PATIENTS})"
    return Interval(value=value, low=None, high=None, values=values, patients=patients, note=note)
