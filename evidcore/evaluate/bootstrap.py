"""The one bootstrap: patients are resampled with all that was asked about them.

Questions about one patient are alike, and intervals that take them for independent are too narrow. A draw
picks as many patients as there are; every arm sees the same draw, so what arms share cancels. A figure is
computed anew from the sums of a draw, so a ratio is resampled like a mean. The interval is that of the
percentiles of the draws; a share has a closed form that covers more near 0 and 1 (`Sample.wilson`).

1. A patient whose sums are all 0 adds nothing to a figure: he is not drawn and does not count.
2. Fewer than `FEWEST_PATIENTS` patients give no interval, because none could be trusted.
3. Ties: where every draw gives the same, there is no spread to tell an interval from, so there is none. A
   share of 0 or of all, in one sample, has the exact binomial bound over patients instead.
"""

import dataclasses
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Self

import numpy as np
from jaxtyping import Float

from evidcore.contracts.evaluating import Interval
from evidcore.evaluate.pooling import Array, Figure, Pool, columns_of, kind_of, pool_of, pooled

FEWEST_PATIENTS = 20
DRAWS = 4000
LEVEL = 0.95  # share of intervals that hold the truth
POWER = 0.8
TIED = "no interval: every draw gives the same"
SAME = 1e-12  # rounding alone makes draws differ by less
_INDICES_AT_ONCE = 4_000_000  # bounds the memory of a bootstrap over many patients

Values = Sequence[float] | Float[np.ndarray[Any, Any], " value"]


def detectable(
    of: Interval | float | None, *, tests: int = 1, degrees_of_freedom: float | None = None
) -> float | None:
    """Return the smallest true difference from 0 that would be found in a share POWER of such experiments.

    (z(1 - α/2m) + z(POWER)) · standard error, for a two-sided test at α = 5 % that m tests share as in Holm's
    first step: 2.80 standard errors for one test at 80 %.

    Args:
        of: a paired difference, or its standard error; None and ties give None.
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
    return float(reference.ppf(1 - (1 - LEVEL) / (2 * tests)) + reference.ppf(POWER)) * error


def mean_interval(values: Values, patients: Sequence[Hashable]) -> Interval:
    """Estimate a mean over questions of shares (0 to 1) or of other numbers.

    Raises:
        ValueError: if there is no value, or the lengths differ.
    """
    return ratio_interval(values, np.ones(len(values)), patients)


def ratio_interval(numerators: Values, denominators: Values, patients: Sequence[Hashable]) -> Interval:
    """Estimate sum of numerators over sum of denominators (an F1, say)."""
    sample = Sample.ratio(numerators, denominators, patients)
    sums, totals = sample.of(sample.informative).sums[0].T
    result = _interval(_quotient(sample), len(numerators), sample)
    is_extreme = (sums == 0).all() or np.array_equal(sums, totals)
    if result.value not in (0.0, 1.0) or not is_extreme or result.patients < FEWEST_PATIENTS:
        return result
    bound = ((1 - LEVEL) / 2) ** (1 / result.patients)
    low, high = (bound, 1.0) if result.value == 1.0 else (0.0, 1 - bound)
    note = "all values are equal: exact binomial bound over patients"
    return dataclasses.replace(result, low=low, high=high, note=note, is_tied=False)


def paired_interval(first: Values, second: Values, patients: Sequence[Hashable]) -> Interval:
    """Estimate the mean of first - second over the same questions.

    Raises:
        ValueError: if the lengths differ.
    """
    if len(first) != len(second):
        raise ValueError(f"a pair needs two values per question, got {len(first)} and {len(second)}")
    differences = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
    return _any_mean(differences, patients)


def difference_p(differences: Sequence[float], patients: Sequence[Hashable]) -> float:
    """Return the two-sided p value of no difference: t over patients, and no less than a sign test's."""
    from scipy import stats

    mean = sum(differences) / len(differences)
    apart: dict[Hashable, float] = {}
    for value, patient in zip(differences, patients, strict=True):
        apart[patient] = apart.get(patient, 0.0) + value - mean
    count = len(apart)
    if count < 2 or not mean:
        return 1.0
    spread = sum(total * total for total in apart.values()) * count / (count - 1)
    error = float(spread**0.5 / len(differences))  # of a mean of clustered values
    p = 2 * stats.t.sf(abs(mean) / error, count - 1) if error else 0.0
    return max(float(p), 2.0 ** (1 - count))  # few that agree tell no more than a sign test


def figure_interval(figures: Sequence[Figure], patients: Sequence[str]) -> Interval | None:
    """Return the figure over all texts with its patient-clustered interval; None where it is 0 over 0.

    Texts whose sums are all 0 are not counted. The scale of plain numbers is not known, so that they have no
    exact bound.
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
    return _interval(value, len(owners), Sample.summed([columns], owners, pool_of(kind.pooling)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust the p values of a table, so that one false claim in all of it stays as rare as in a single test.

    Source:
        Holm 1979, A simple sequentially rejective multiple test procedure, Scand. J. Statist. 6.
    """
    order = np.argsort(p_values, kind="stable")
    stepped = np.asarray(p_values)[order] * np.arange(len(order), 0, -1)
    return list(np.minimum(np.maximum.accumulate(stepped), 1.0)[np.argsort(order)].tolist())


@dataclasses.dataclass(frozen=True)
class Sample:
    """The items of one or several arms, summed by patient."""

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
        """Add the items of each patient up."""
        names = tuple(sorted(set(owners if patients is None else patients), key=str))
        index_of = {name: index for index, name in enumerate(names)}
        indices = np.array([index_of[owner] for owner in owners], dtype=np.int64)
        sums = tuple(np.zeros((len(names), columns.shape[1])) for columns in arms)
        for table, columns in zip(sums, arms, strict=True):
            np.add.at(table, indices, columns)
        return cls(names, sums, pool)

    @classmethod
    def ratio(cls, numerators: Values, denominators: Values, owners: Sequence[Hashable]) -> Self:
        """Take one arm whose value is a ratio."""
        for values in (numerators, denominators):
            if len(values) != len(owners):
                raise ValueError(
                    f"every value needs its patient, got {len(values)} values and {len(owners)} patients"
                )
        if not len(owners):
            raise ValueError("nothing to average: 0 values")
        columns = np.column_stack([numerators, denominators]).astype(np.float64)
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

    def wilson(self) -> tuple[float, float, float] | None:
        """Return the ends and standard error of one arm's ratio whose patients' parts are shares, 0 to 1.

        Wilson's interval with t over patients, at the number of independent questions that would vary as
        much; None for other figures, and where all patients agree. Percentiles of draws cover less near 0
        and 1.

        Source:
            Wilson 1927, JASA 22. Dean & Pagano 2015, Evaluating confidence interval methods for binomial
            proportions in clustered surveys, J. Surv. Stat. Methodol. 3.
        """
        if len(self.sums) > 1 or self.pool is not pool_of("ratio"):
            return None
        sums, totals = self.sums[0].T
        value, count = sums.sum() / totals.sum(), len(sums)
        apart = sums - value * totals
        error = float((apart @ apart * count / (count - 1)) ** 0.5 / totals.sum())
        if error < SAME or not ((sums >= 0) & (sums <= totals)).all():
            return None
        from scipy import stats

        reach = float(stats.t.ppf((1 + LEVEL) / 2, count - 1)) * error
        weight = reach**2 / (value * (1 - value))  # t² over the effective number of questions
        half = (reach**2 + weight**2 / 4) ** 0.5
        return (value + weight / 2 - half) / (1 + weight), (value + weight / 2 + half) / (1 + weight), error

    def values(self) -> Array:
        """Return each arm's value; not a number where it is 0 over 0."""
        ones = np.ones((1, len(self.patients)))
        return np.ravel(self.pooled([ones @ table for table in self.sums]))

    def pooled(self, sums: Sequence[Array]) -> Array:
        """Return each arm's value in each draw: (draw, arm)."""
        return np.stack([self.pool(table) for table in sums], axis=1)


def percentiles(drawn: Array) -> tuple[float, float, float] | None:
    """Return the ends of the interval and the standard error of draws; None where all known ones agree."""
    drawn = drawn[np.isfinite(drawn)]
    if not len(drawn) or np.ptp(drawn) < SAME:
        return None
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high), float(drawn.std(ddof=1))


def _any_mean(values: Array, patients: Sequence[Hashable]) -> Interval:
    """Estimate a mean of numbers of any scale."""
    sample = Sample.ratio(values, np.ones(len(values)), patients)
    return _interval(_quotient(sample), len(values), sample)


def _quotient(sample: Sample) -> float:
    above, below = (np.ascontiguousarray(column).sum() for column in sample.sums[0].T)
    if not below > 0:
        raise ValueError(f"the denominators of a ratio must sum to more than 0, got {below}")
    return float(above / below)


def _interval(value: float, values: int, sample: Sample) -> Interval:
    """Give a value of one sample its interval, or say why it has none."""
    sample = sample.of(sample.informative)
    patients = len(sample.patients)
    result = Interval(value=value, low=None, high=None, values=values, patients=patients)
    if patients < FEWEST_PATIENTS:
        return dataclasses.replace(result, note=too_few(patients))
    spread = sample.wilson() or percentiles(
        sample.pooled(resampled(sample.sums, DRAWS, np.random.default_rng(0)))[:, 0]
    )
    if spread is None:
        return dataclasses.replace(result, note=TIED, is_tied=True)
    low, high, standard_error = spread
    return dataclasses.replace(result, low=low, high=high, standard_error=standard_error)


def resampled(tables: Sequence[Array], draws: int, rng: np.random.Generator) -> list[Array]:
    """Sum each table over patients drawn with replacement, the same ones for all: (draw, number) each."""
    patients = len(tables[0])
    at_once = max(1, _INDICES_AT_ONCE // patients)
    sums = [np.empty((draws, table.shape[1])) for table in tables]
    for start in range(0, draws, at_once):
        indices = rng.integers(patients, size=(min(at_once, draws - start), patients))
        for table, row in zip(tables, sums, strict=True):
            for number, column in enumerate(table.T):
                row[start : start + len(indices), number] = column[indices].sum(axis=1)
    return sums


def too_few(patients: int) -> str:
    """Say why so few patients have no interval."""
    return f"too few patients ({patients} of at least {FEWEST_PATIENTS})"
