"""Weighted differences between arms over the same items, resampled by seed, then by patient.

One bootstrap serves every comparison of a metric: in each draw all arms see the same seeds and the same
patients, so what arms share cancels. A difference from a reference, a main effect and an interaction are sums
of the arms' values with weights; a mean is the sum with one weight of 1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from evidcore.contracts import Pooling
from evidcore.evaluate.items import Item
from evidcore.evaluate.pooling import pool_sums
from evidcore.evaluate.statistics import DRAWS, FEWEST_PATIENTS

POWER = 0.8
_SAME = 1e-12  # rounding alone makes draws differ by less
Array = Float[np.ndarray[Any, Any], "..."]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contrast:
    """A weighted sum of arms; what is None is said in `note`."""

    value: float | None
    low: float | None = None
    high: float | None = None
    by_seed: Mapping[int, float]
    standard_error: float | None = None
    p_value: float | None = None  # two-sided, against 0
    items: int = 0  # over all seeds
    patients: int = 0
    note: str = ""

    def noted(self, note: str) -> Contrast:
        """Return it with one more note."""
        return dataclasses.replace(self, note="; ".join(part for part in (self.note, note) if part))

    def detectable(self, *, tests: int = 1, level: float = 0.95) -> float | None:
        """Return the smallest true value that would be found in 80 % of such experiments.

        (z(1 - α/2m) + z(0.8)) · standard error, for a two-sided test at α = 1 - level that m tests share as
        in Holm's first step.

        Source:
            Bloom 1995, Minimum detectable effects, Evaluation Review 19.
        """
        from scipy import stats

        if self.standard_error is None:
            return None
        alpha = (1 - level) / tests
        return float(stats.norm.ppf(1 - alpha / 2) + stats.norm.ppf(POWER)) * self.standard_error


class Arms:
    """The items of one metric, by arm and seed."""

    def __init__(
        self,
        items: Mapping[str, Mapping[int, Mapping[str, Item]]],
        *,
        patients_shared: bool,
        level: float = 0.95,
        draws: int = DRAWS,
        seed: int = 0,
    ) -> None:
        """Keep what is resampled.

        Args:
            items: arm -> seed -> item id -> item; an arm may lack a seed.
            patients_shared: the seeds were tested on the same patients, so that one draw of patients serves
                all of them; False where each seed has patients of its own.
            level: share of intervals that hold the truth.
            draws: bootstrap samples.
            seed: of the bootstrap.
        """
        self._items, self._shared = items, patients_shared
        self._level, self._draws, self._seed = level, draws, seed

    def contrast(self, weights: Mapping[str, float]) -> Contrast:
        """Estimate the mean over seeds of the weighted sum of the arms' values.

        Seeds in which one of the arms is missing are left out. Where every draw gives the same, there is no
        spread to tell an interval from.

        Raises:
            ValueError: if two of the arms hold different items under one seed; tells how many.
        """
        arms = tuple(sorted(weights))
        seeds = tuple(sorted(set.intersection(*(set(self._items[arm]) for arm in arms))))
        if not seeds:
            return Contrast(value=None, by_seed={}, note="no seed is finished in all of its arms")
        share = np.array([weights[arm] for arm in arms])
        cells = [_Cell.of([self._items[arm][seed] for arm in arms], arms, seed) for seed in seeds]
        measured = [float(cell.values() @ share) for cell in cells]
        if not np.isfinite(measured).all():
            return Contrast(value=None, by_seed={}, note="an arm has nothing to divide by")
        owners = [cell.heard for cell in cells]
        found = Contrast(
            value=float(np.mean(measured)),
            by_seed=dict(zip(seeds, measured, strict=True)),
            items=sum(cell.count for cell in cells),
            patients=len(frozenset.union(*owners)) if self._shared else sum(map(len, owners)),
            note=_lacking(sum(cell.missing for cell in cells), sum(cell.count for cell in cells)),
        )
        fewest = min(map(len, owners))
        if fewest < FEWEST_PATIENTS:
            return found.noted(f"too few patients ({fewest} of at least {FEWEST_PATIENTS})")
        drawn = self._drawn(cells) @ share
        return self._with_spread(found, drawn[np.isfinite(drawn)])

    def _with_spread(self, found: Contrast, drawn: Array) -> Contrast:
        """Add what the draws say."""
        if not len(drawn) or np.ptp(drawn) < _SAME:
            return found.noted("no interval: every draw gives the same")
        low, high = np.quantile(drawn, [(1 - self._level) / 2, (1 + self._level) / 2])
        beyond = min(int((drawn <= 0).sum()), int((drawn >= 0).sum()))
        whole = dataclasses.replace(
            found, low=float(low), high=float(high), standard_error=float(drawn.std(ddof=1)),
            p_value=min(1.0, 2 * (1 + beyond) / (1 + len(drawn))),
        )  # fmt: skip
        return (
            whole if len(found.by_seed) > 1 else whole.noted("1 seed: its training alone is in the interval")
        )

    def _drawn(self, cells: Sequence[_Cell]) -> Array:
        """Return the arms' values in each draw: (draw, arm). Equal for equal seeds, whatever the arms."""
        if self._shared and any(cell.patients != cells[0].patients for cell in cells):
            raise ValueError(
                "patients_shared: every seed must be tested on the same patients, and they differ"
            )
        dice = np.random.default_rng(self._seed)
        chosen = dice.integers(len(cells), size=(self._draws, len(cells)))  # (draw, place) -> seed
        counts = _counts(dice, self._draws, len(cells[0].patients)) if self._shared else None
        total = np.zeros((self._draws, len(cells[0].sums)))
        for place in range(len(cells)):
            for number, cell in enumerate(cells):
                here = chosen[:, place] == number
                own = counts[here] if counts is not None else _counts(dice, here.sum(), len(cell.patients))
                total[here] += cell.values(own)
        return total / len(cells)


@dataclasses.dataclass(frozen=True)
class _Cell:
    """One seed of several arms, summed by patient."""

    patients: tuple[str, ...]
    heard: frozenset[str]  # those with an item that counts
    pooling: Pooling
    sums: tuple[Array, ...]  # by arm: (patient, number)
    count: int
    missing: int  # items whose figure an arm lacks

    @classmethod
    def of(cls, items: Sequence[Mapping[str, Item]], arms: Sequence[str], seed: int) -> _Cell:
        """Sum the items of each arm."""
        for arm, some in zip(arms, items, strict=True):
            if some.keys() != items[0].keys():
                raise ValueError(
                    f"a comparison needs the same questions: under seed {seed}, "
                    f"{len(items[0].keys() - some.keys())} are only in {arms[0]!r}, "
                    f"{len(some.keys() - items[0].keys())} only in {arm!r}"
                )
        kept = [name for name in items[0] if all(some[name].sums is not None for some in items)]
        patients = sorted({item.patient for item in items[0].values()})
        owners = [items[0][name].patient for name in kept]
        known = [[own for name in kept if (own := some[name].sums) is not None] for some in items]
        kinds = {(one.pooling, len(one.numbers)) for some in known for one in some} or {("ratio", 2)}
        if len(kinds) > 1:
            raise ValueError(f"figures of one name must be of one kind, got {sorted(kinds)}")
        ((pooling, width),) = kinds
        places = {patient: place for place, patient in enumerate(patients)}
        sums = tuple(np.zeros((len(patients), width)) for _ in items)
        for table, figures in zip(sums, known, strict=True):
            for owner, one in zip(owners, figures, strict=True):
                table[places[owner]] += one.numbers
        missing = len(items[0]) - len(kept)
        return cls(tuple(patients), frozenset(owners), pooling, sums, len(kept), missing)

    def values(self, counts: Array | None = None) -> Array:
        """Return each arm's value, of all patients or of each draw; not a number where it is 0 over 0."""
        drawn = np.ones((1, len(self.patients))) if counts is None else counts
        found = np.stack([pool_sums(self.pooling, drawn @ table) for table in self.sums], axis=1)
        return found[0] if counts is None else found


def _lacking(missing: int, count: int) -> str:
    return f"{missing} of {missing + count} answers lack it in an arm" if missing else ""


def _counts(dice: np.random.Generator, draws: int, patients: int) -> Array:
    """Return how often each patient is drawn when as many as there are, are drawn: (draw, patient)."""
    places = dice.integers(patients, size=(draws, patients)) + patients * np.arange(draws)[:, None]
    return np.bincount(places.ravel(), minlength=draws * patients).reshape(draws, patients).astype(float)
