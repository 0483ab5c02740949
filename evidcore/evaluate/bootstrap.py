"""The one bootstrap: patients are resampled with all that was asked about them; seeds enter by a t.

Questions about one patient are alike, and intervals that take them for independent are too narrow. A draw
picks as many patients as there are; every arm sees the same draw, so what arms share cancels. A figure is
computed anew from the sums of a draw, so a ratio is resampled like a mean. One sample has the percentiles of
its draws. Several seeds have a t: their values differ by the seeds and by what each seed's patients add, and
the draws give the variance of the patients whom seeds share (`over_seeds`).

1. A patient whose sums are all 0 adds nothing to a figure: he is not drawn and does not count.
2. Fewer than `FEWEST_PATIENTS` patients give no interval, because none could be trusted.
3. Ties: where every draw gives the same, there is no spread to tell an interval from, so there is none. A
   share of 0 or of all, in one sample, has the exact binomial bound over patients instead.
4. Fewer than `FEWEST_SEEDS` seeds give no p value: an interval, and "no test".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from jaxtyping import Float

from evidcore.contracts import Sums
from evidcore.evaluate.pooling import Array, Figure, Pool, columns_of, kind_of, pool_of, pooled

FEWEST_PATIENTS = 20
FEWEST_SEEDS = 5
DRAWS = 4000
LEVEL = 0.95  # share of intervals that hold the truth
POWER = 0.8
TIED = "no interval: every draw gives the same"
_SAME = 1e-12  # rounding alone makes draws differ by less
_INDICES_AT_ONCE = 4_000_000  # bounds the memory of a bootstrap over many patients

Values = Sequence[float] | Float[np.ndarray[Any, Any], " value"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Interval:
    """An estimate with the interval around it; `low` and `high` are None where `note` says why."""

    value: float
    low: float | None
    high: float | None
    values: int  # questions, or whatever was averaged
    patients: int
    note: str = ""
    is_tied: bool = False  # every draw gave `value`
    standard_error: float | None = None  # of the draws; None where there is no interval from them

    def covers(self, value: float) -> bool:
        """Tell whether `value` lies inside; False where there is no interval."""
        return self.low is not None and self.high is not None and self.low <= value <= self.high


class Item(NamedTuple):
    """One question or report; `sums` is None where its figure is missing."""

    patient: str  # or the case, where no patient is known
    sums: Sums | None


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

    def detectable(self, *, tests: int = 1) -> float | None:
        """Return the smallest true value that would be found: `detectable` with the t of the seeds."""
        return detectable(self.standard_error, tests=tests, degrees_of_freedom=self.degrees_of_freedom)


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
        draws: int = DRAWS,
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
        one weight of 1. Seeds in which one of the arms is missing are left out. One seed has the percentiles
        of its patients' draws and no test; several have `over_seeds`.

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
        found = Contrast(
            value=float(np.mean(measured)),
            by_seed=dict(zip(seeds, measured, strict=True)),
            items=sum(counts),
            patients=len(union) if self._shared else sum(map(len, informative)),
            note=f"{missing} of {asked} answers lack it in an arm" if missing else "",
        )
        fewest = min(map(len, informative))
        if fewest < FEWEST_PATIENTS:
            return found.noted(_too_few(fewest))
        if self._shared and any(sample.patients != samples[0].patients for sample in samples):
            raise ValueError(
                "patients_shared: every seed must be tested on the same patients, and they differ"
            )
        drawn_from = [
            sample.of(union if self._shared else own)
            for sample, own in zip(samples, informative, strict=True)
        ]
        drawn = _draw(drawn_from, patients_shared=self._shared, draws=self._draws, seed=self._seed) @ share
        if len(seeds) == 1:
            spread = _percentiles(drawn[:, 0])
            missed = "1 seed: patients alone, no test"
        else:
            known = drawn[np.isfinite(drawn).all(axis=1)]
            if len(known) < 2:
                return found.noted("no interval: nothing to divide by in nearly every draw")
            covariance = np.cov(known, rowvar=False)
            if not self._shared:
                covariance = np.diag(np.diag(covariance))
            spread = over_seeds(np.array(measured), covariance, patient_degrees=len(union) - 1)
            missed = f"{len(seeds)} seeds: no test" if len(seeds) < FEWEST_SEEDS else ""
        if spread is None:
            return found.noted(TIED if np.ptp(drawn) < _SAME else "no interval: every seed gives the same")
        return dataclasses.replace(found, **spread._asdict()).noted(missed)


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
    as rare as 5 % (tests/evaluate/test_bootstrap.py).

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
    if error < _SAME:
        return None
    cautious = 2 * max(between, own - common) / seeds
    degrees = (common + cautious) ** 2 / (cautious**2 / (seeds - 1) + common**2 / patient_degrees)
    reach = float(stats.t.ppf((1 + LEVEL) / 2, degrees)) * error
    p_value = 2 * float(stats.t.sf(abs(mean) / error, degrees)) if seeds >= FEWEST_SEEDS else None
    return Spread(mean - reach, mean + reach, error, degrees, p_value)


def detectable(
    of: Interval | float | None,
    *,
    power: float = POWER,
    tests: int = 1,
    degrees_of_freedom: float | None = None,
) -> float | None:
    """Return the smallest true difference from 0 that would be found in a share `power` of such experiments.

    (z(1 - α/2m) + z(power)) · standard error, for a two-sided test at α = 5 % that m tests share as in Holm's
    first step: 2.80 standard errors for one test at 80 %.

    Args:
        of: a paired difference, or its standard error; None and ties give None.
        power: share of experiments.
        tests: m.
        degrees_of_freedom: of a t in place of z.

    Source:
        Bloom 1995, Minimum detectable effects, Evaluation Review 19.
    """
    from scipy import stats

    error = of.standard_error if isinstance(of, Interval) else of
    if error is None:
        return None
    reference = stats.norm if degrees_of_freedom is None else stats.t(degrees_of_freedom)
    return float(reference.ppf(1 - (1 - LEVEL) / (2 * tests)) + reference.ppf(power)) * error


def mean_interval(values: Values, patients: Sequence[Hashable], *, draws: int = DRAWS) -> Interval:
    """Estimate a mean of shares (0 to 1) over questions with a patient-clustered percentile bootstrap.

    Args:
        values: one per question.
        patients: whose question it is, one per value.
        draws: bootstrap samples.

    Raises:
        ValueError: if there is no value, or the lengths differ.

    Source:
        Field & Welsh 2007, Bootstrapping clustered data, JRSS B 69 (cluster bootstrap).
    """
    return ratio_interval(values, np.ones(len(values)), patients, draws=draws)


def ratio_interval(
    numerators: Values, denominators: Values, patients: Sequence[Hashable], *, draws: int = DRAWS
) -> Interval:
    """Estimate sum of numerators over sum of denominators (an F1, say) with the same bootstrap.

    Raises:
        ValueError: if there is no value, the lengths differ, or the denominators sum to 0.
    """
    sample = _Sample.ratio(numerators, denominators, patients)
    sums, totals = (np.ascontiguousarray(column) for column in sample.of(sample.informative).sums[0].T)
    found = _interval(_quotient(sample), len(numerators), sample, draws=draws)
    is_extreme = (sums == 0).all() or np.array_equal(sums, totals)
    if found.value not in (0.0, 1.0) or not is_extreme or found.patients < FEWEST_PATIENTS:
        return found
    bound = ((1 - LEVEL) / 2) ** (1 / found.patients)
    low, high = (bound, 1.0) if found.value == 1.0 else (0.0, 1 - bound)
    note = "all values are equal: exact binomial bound over patients"
    return dataclasses.replace(found, low=low, high=high, note=note, is_tied=False)


def paired_interval(first: Values, second: Values, patients: Sequence[Hashable]) -> Interval:
    """Estimate the mean of first - second over the same questions.

    Raises:
        ValueError: if the lengths differ.
    """
    if len(first) != len(second):
        raise ValueError(f"a pair needs two values per question, got {len(first)} and {len(second)}")
    differences = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
    return _any_mean(differences, patients)


def figure_interval(figures: Sequence[Figure], patients: Sequence[str]) -> Interval | None:
    """Return the figure over all texts with its patient-clustered interval; None where it is 0 over 0.

    Texts whose sums are all 0 are not counted. The scale of plain numbers is not known, so that they have no
    exact bound.

    Args:
        figures: one per text.
        patients: whose text it is.

    Raises:
        ValueError: if there is none, or they are of different kinds.
    """
    value = pooled(figures)
    if value is None:
        return None
    kind = kind_of(figures)
    if kind is None:
        return _any_mean(np.asarray(figures, dtype=np.float64), patients)
    columns = columns_of(figures)
    adds = np.asarray(columns.any(axis=1))
    columns = columns[adds]
    owners = [patient for patient, here in zip(patients, adds, strict=True) if here]
    if kind.pooling == "ratio":
        return ratio_interval(columns[:, 0], columns[:, 1], owners)
    return _interval(value, len(owners), _Sample.summed([columns], owners, pool_of(kind.pooling)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust the p values of a table, so that one false claim in all of it stays as rare as in a single test.

    Source:
        Holm 1979, A simple sequentially rejective multiple test procedure, Scand. J. Statist. 6.
    """
    adjusted, largest = [0.0] * len(p_values), 0.0
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


@dataclasses.dataclass(frozen=True)
class _Sample:
    """One seed of one or several arms, summed by patient."""

    patients: tuple[Hashable, ...]  # sorted by name
    sums: tuple[Array, ...]  # by arm: (patient, number)
    pool: Pool

    @classmethod
    def summed(
        cls,
        arms: Sequence[Array],  # (item, number) each, of the same items
        owners: Sequence[Hashable],  # by item
        pool: Pool,
        patients: Iterable[Hashable] | None = None,  # where some have no item
    ) -> Self:
        names = tuple(sorted(set(owners if patients is None else patients), key=str))
        index_of = {name: index for index, name in enumerate(names)}
        indices = np.array([index_of[owner] for owner in owners], dtype=np.int64)
        sums = tuple(np.zeros((len(names), columns.shape[1])) for columns in arms)
        for table, columns in zip(sums, arms, strict=True):
            np.add.at(table, indices, columns)
        return cls(names, sums, pool)

    @classmethod
    def ratio(cls, numerators: Values, denominators: Values, owners: Sequence[Hashable]) -> Self:
        for values in (numerators, denominators):
            if len(values) != len(owners):
                raise ValueError(
                    f"every value needs its patient, got {len(values)} values and {len(owners)} patients"
                )
        if not len(owners):
            raise ValueError("nothing to average: 0 values")
        columns = np.stack(
            [np.asarray(side, dtype=np.float64) for side in (numerators, denominators)], axis=1
        )
        return cls.summed([columns], owners, pool_of("ratio"))

    @property
    def informative(self) -> frozenset[Hashable]:
        """Return the patients with a sum other than 0."""
        adds = np.any([table.any(axis=1) for table in self.sums], axis=0)
        return frozenset(name for name, here in zip(self.patients, adds, strict=True) if here)

    def of(self, chosen: frozenset[Hashable]) -> Self:
        """Return the sample of some of its patients."""
        here = np.array([name in chosen for name in self.patients], dtype=bool)
        names = tuple(name for name in self.patients if name in chosen)
        return dataclasses.replace(self, patients=names, sums=tuple(table[here] for table in self.sums))

    def values(self) -> Array:
        """Return each arm's value; not a number where it is 0 over 0."""
        ones = np.ones((1, len(self.patients)))
        return np.ravel(self.pooled([ones @ table for table in self.sums]))

    def pooled(self, sums: Sequence[Array]) -> Array:
        """Return each arm's value in each draw: (draw, arm)."""
        return np.stack([self.pool(table) for table in sums], axis=1)


def _percentiles(drawn: Array) -> Spread | None:
    """Return what draws of one sample tell; None where all that are known give the same."""
    drawn = drawn[np.isfinite(drawn)]
    if not len(drawn) or np.ptp(drawn) < _SAME:
        return None
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Spread(float(low), float(high), float(drawn.std(ddof=1)))


def _paired(items: Sequence[Mapping[str, Item]], arms: Sequence[str], seed: int) -> tuple[_Sample, int]:
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
    kind = kind_of([sums for some in known for sums in some] or [Sums("ratio", (0.0, 0.0))])
    assert kind is not None  # items hold sums
    columns = [columns_of(some).reshape(len(names), kind.width) for some in known]
    patients = {item.patient for item in items[0].values()}
    return _Sample.summed(columns, owners, pool_of(kind.pooling), patients), len(names)


def _any_mean(values: Array, patients: Sequence[Hashable]) -> Interval:
    """Estimate a mean of numbers of any scale."""
    sample = _Sample.ratio(values, np.ones(len(values)), patients)
    return _interval(_quotient(sample), len(values), sample)


def _quotient(sample: _Sample) -> float:
    above, below = (np.ascontiguousarray(column).sum() for column in sample.sums[0].T)
    if not below > 0:
        raise ValueError(f"the denominators of a ratio must sum to more than 0, got {below}")
    return float(above / below)


def _interval(value: float, values: int, sample: _Sample, *, draws: int = DRAWS) -> Interval:
    """Give a value of one sample its interval, or say why it has none."""
    sample = sample.of(sample.informative)
    patients = len(sample.patients)
    found = Interval(value=value, low=None, high=None, values=values, patients=patients)
    if patients < FEWEST_PATIENTS:
        return dataclasses.replace(found, note=_too_few(patients))
    spread = _percentiles(_draw([sample], patients_shared=True, draws=draws)[:, 0, 0])
    if spread is None:
        return dataclasses.replace(found, note=TIED, is_tied=True)
    return dataclasses.replace(found, low=spread.low, high=spread.high, standard_error=spread.standard_error)


def _draw(samples: Sequence[_Sample], *, patients_shared: bool, draws: int, seed: int = 0) -> Array:
    """Return each seed's values when patients are resampled: (draw, seed, arm). Equal for equal seeds."""
    rng = np.random.default_rng(seed)
    if not patients_shared:
        return np.stack([sample.pooled(_resampled(sample.sums, draws, rng)) for sample in samples], axis=1)
    arms = len(samples[0].sums)
    common = _resampled([table for sample in samples for table in sample.sums], draws, rng)
    parts = [common[start : start + arms] for start in range(0, len(common), arms)]
    return np.stack([sample.pooled(part) for sample, part in zip(samples, parts, strict=True)], axis=1)


def _resampled(tables: Sequence[Array], draws: int, rng: np.random.Generator) -> list[Array]:
    """Sum each table over patients drawn with replacement, the same ones for all: (draw, number) each."""
    patients = len(tables[0])
    at_once = max(1, _INDICES_AT_ONCE // patients)
    sums = [np.empty((draws, table.shape[1])) for table in tables]
    for start in range(0, draws, at_once):
        indices = rng.integers(patients, size=(min(at_once, draws - start), patients))
        for table, own in zip(tables, sums, strict=True):
            for number, column in enumerate(table.T):
                own[start : start + len(indices), number] = column[indices].sum(axis=1)
    return sums


def _too_few(patients: int) -> str:
    return f"too few patients ({patients} of at least {FEWEST_PATIENTS})"
