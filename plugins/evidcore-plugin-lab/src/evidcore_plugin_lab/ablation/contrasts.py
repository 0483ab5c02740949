"""Arms of an ablation over seeds: one bootstrap of patients, paired by question, and a t over the seeds.

An arm's value differs by the seed and by what each seed's patients add; the draws of patients give the
variance of those whom seeds share (`over_seeds`). Every arm sees the same draw, so what arms share cancels.
One seed has an evaluation's interval. Fewer than `FEWEST_SEEDS` seeds give no p value: an interval, and
"no test".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from evidcore.contracts import Totals
from evidcore.evaluate import bootstrap
from evidcore.evaluate.bootstrap import Sample, resampled
from evidcore.evaluate.pooling import columns_of, kind_of, pool_of

FEWEST_SEEDS = 5


class Item(NamedTuple):
    """One question or report; `sums` is None where its figure is missing."""

    patient: str  # or the case, where no patient is known
    sums: Totals | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contrast:
    """A weighted sum of arms; what is None is said in `note`."""

    value: float | None
    low: float | None = None
    high: float | None = None
    by_seed: Mapping[int, float]
    standard_error: float | None = None
    degrees_of_freedom: float | None = None  # of the t over seeds; None for one seed
    p_value: float | None = None  # two-sided, against 0; None under `FEWEST_SEEDS` seeds
    items: int = 0  # over all seeds
    patients: int = 0
    note: str = ""

    def noted(self, note: str) -> Contrast:
        """Return it with one more note."""
        return dataclasses.replace(self, note="; ".join(part for part in (self.note, note) if part))


class Spread(NamedTuple):
    """What is known of an estimate's error."""

    low: float
    high: float
    standard_error: float
    degrees_of_freedom: float | None = None
    p_value: float | None = None


class Arms:
    """The items of one metric, by arm and seed."""

    def __init__(
        self,
        items: Mapping[str, Mapping[int, Mapping[str, Item]]],
        *,
        patients_shared: bool,
        draws: int = bootstrap.DRAWS,
        seed: int = 0,
    ) -> None:
        """Take what is resampled.

        Args:
            items: arm -> seed -> item id -> item; an arm may lack a seed.
            patients_shared: the seeds were tested on the same patients, so that one draw of patients serves
                all of them; False where each seed has patients of its own.
            draws: bootstrap samples.
            seed: of the bootstrap.
        """
        self._items, self._shared = items, patients_shared
        self._draws, self._seed = draws, seed

    def contrast(self, weights: Mapping[str, float]) -> Contrast:
        """Estimate the mean over seeds of the weighted sum of the arms' values, paired by seed and patient.

        A difference from a reference, a main effect and an interaction are such sums; a mean is the sum with
        one weight of 1. Seeds in which one of the arms is missing are left out. One seed has an
        evaluation's interval and no test; several have `over_seeds`.

        Raises:
            ValueError: if two of the arms hold different items under one seed (tells how many), figures are
                of different kinds, or shared patients are missing from a seed.
        """
        arms = tuple(sorted(weights))
        seeds = tuple(sorted(set.intersection(*(set(self._items[arm]) for arm in arms))))
        if not seeds:
            return Contrast(value=None, by_seed={}, note="no seed is finished in all of its arms")
        share = np.array([weights[arm] for arm in arms])
        paired = [_paired([self._items[arm][seed] for arm in arms], arms, seed) for seed in seeds]
        samples, counts = [sample for sample, _ in paired], [count for _, count in paired]
        measured = [float(sample.values() @ share) for sample in samples]
        if not np.isfinite(measured).all():
            return Contrast(value=None, by_seed={}, note="an arm has nothing to divide by")
        asked = sum(len(self._items[arms[0]][seed]) for seed in seeds)
        missing = asked - sum(counts)
        informative = [sample.informative for sample in samples]
        union = frozenset[Hashable]().union(*informative)
        result = Contrast(
            value=float(np.mean(measured)),
            by_seed=dict(zip(seeds, measured, strict=True)),
            items=sum(counts),
            patients=len(union) if self._shared else sum(map(len, informative)),
            note=f"{missing} of {asked} answers lack it in an arm" if missing else "",
        )
        fewest = min(map(len, informative))
        if fewest < bootstrap.FEWEST_PATIENTS:
            return result.noted(bootstrap.too_few(fewest))
        if self._shared and any(sample.patients != samples[0].patients for sample in samples):
            raise ValueError("patients_shared: every seed must be tested on the same patients; they differ")
        pairs = zip(samples, informative, strict=True)
        drawn_from = [sample.of(union if self._shared else own) for sample, own in pairs]
        rng, drawn_values = np.random.default_rng(self._seed), []
        for together in [drawn_from] if self._shared else [[sample] for sample in drawn_from]:
            sums = resampled([table for sample in together for table in sample.sums], self._draws, rng)
            for index, sample in enumerate(together):
                drawn_values.append(sample.pooled(sums[index * len(arms) : (index + 1) * len(arms)]))
        drawn = np.stack(drawn_values, axis=1) @ share  # (draw, seed)
        if len(seeds) == 1:
            closed = drawn_from[0].wilson() if weights == {arms[0]: 1.0} else None
            ends = closed or bootstrap.percentiles(drawn[:, 0])
            spread = None if ends is None else Spread(*ends)
            missed = "1 seed: patients alone, no test"
        else:
            known = drawn[np.isfinite(drawn).all(axis=1)]
            if len(known) < 2:
                return result.noted("no interval: nothing to divide by in nearly every draw")
            covariance = np.cov(known, rowvar=False)
            if not self._shared:
                covariance = np.diag(np.diag(covariance))
            spread = over_seeds(np.array(measured), covariance, patient_degrees=len(union) - 1)
            missed = f"{len(seeds)} seeds: no test" if len(seeds) < FEWEST_SEEDS else ""
        if spread is None:
            is_tied = np.ptp(drawn) < bootstrap.SAME
            return result.noted(bootstrap.TIED if is_tied else "no interval: every seed gives the same")
        return dataclasses.replace(result, **spread._asdict()).noted(missed)


def over_seeds(
    values: Float[np.ndarray[Any, Any], " seed"],
    covariance: Float[np.ndarray[Any, Any], "seed seed"],
    *,
    patient_degrees: int,
) -> Spread | None:
    """Estimate the mean of one value a seed by a t with Satterthwaite's degrees of freedom.

    The variance of the mean is s² / seeds, where s² is the variance of the values, plus the part of the
    patients' variance that seeds share, which does not show in s²: the mean covariance of two seeds. With
    patients of their own that part is 0, and this is the t test of the values.

    Few seeds often agree by chance, which would add degrees of freedom where they are needed least. So in
    the degrees s² counts twice, and is at least what patients alone explain: simulated, a false star stays
    as rare as 5 % (tests/ablation/test_contrasts.py).

    Args:
        values: a seed's paired difference, say.
        covariance: of the values, when patients alone are resampled; 0 between seeds with patients of
            their own.
        patient_degrees: patients whom the seeds share, minus 1.

    Returns:
        The interval, with a p value from `FEWEST_SEEDS` seeds on; None where no seed differs from another.

    Source:
        Satterthwaite 1946, An approximate distribution of estimates of variance components, Biometrics 2.
    """
    from scipy import stats

    seeds = len(values)
    own = float(np.trace(covariance)) / seeds
    common = max(0.0, (float(covariance.sum()) - seeds * own) / (seeds * (seeds - 1)))
    between = float(np.var(values, ddof=1))
    error, mean = (common + between / seeds) ** 0.5, float(np.mean(values))
    if error < bootstrap.SAME:
        return None
    cautious = 2 * max(between, own - common) / seeds
    degrees = (common + cautious) ** 2 / (cautious**2 / (seeds - 1) + common**2 / patient_degrees)
    reach = float(stats.t.ppf((1 + bootstrap.LEVEL) / 2, degrees)) * error
    p_value = 2 * float(stats.t.sf(abs(mean) / error, degrees)) if seeds >= FEWEST_SEEDS else None
    return Spread(mean - reach, mean + reach, error, degrees, p_value)


def _paired(items: Sequence[Mapping[str, Item]], arms: Sequence[str], seed: int) -> tuple[Sample, int]:
    """Sum a seed's items by patient; return how many of them every arm has a figure of, too."""
    for arm, some in zip(arms, items, strict=True):
        if some.keys() != items[0].keys():
            raise ValueError(
                f"a comparison needs the same questions: under seed {seed}, "
                f"{len(items[0].keys() - some.keys())} are only in {arms[0]!r}, "
                f"{len(some.keys() - items[0].keys())} only in {arm!r}"
            )
    names = [name for name in items[0] if all(some[name].sums is not None for some in items)]
    owners = [items[0][name].patient for name in names]
    known = [[sums for name in names if (sums := some[name].sums) is not None] for some in items]
    kind = kind_of([sums for some in known for sums in some] or [Totals("ratio", (0.0, 0.0))])
    assert kind is not None  # items hold sums
    columns = [columns_of(some).reshape(len(names), kind.width) for some in known]
    patients = {item.patient for item in items[0].values()}
    return Sample.summed(columns, owners, pool_of(kind.pooling), patients), len(names)
