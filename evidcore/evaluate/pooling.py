"""Figures over many texts from what each text adds to them, with intervals, changes and changes over seeds.

Texts of one patient are resampled together. A figure that is no mean (corpus BLEU, a difference of recalls)
is computed anew from the sums of each resample, for both sides of a change from the same patients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, cast, get_args

import numpy as np

from evidcore.contracts import Pooling, Sums
from evidcore.evaluate.statistics import (
    DRAWS,
    FEWEST_PATIENTS,
    Array,
    Interval,
    by_patient,
    hierarchical_interval,
    mean_interval,
    paired_interval,
    percentiles,
    ratio_interval,
    resampled,
    too_few,
)

Figure = float | Sums
Figures = Sequence[Figure]  # of one name, one per text
LEVEL = 0.95


def to_json(figure: Figure) -> Any:
    """Return a figure of one text as a line of answers holds it: a number, or {"bleu": [2, 5, 6, 7]}."""
    return {figure.pooling: list(figure.numbers)} if isinstance(figure, Sums) else figure


def from_json(value: Any) -> Figure:
    """Read back what `to_json` wrote.

    Raises:
        ValueError: if it is no figure.
    """
    if isinstance(value, Mapping) and len(value) == 1:
        ((pooling, numbers),) = value.items()
        if pooling in get_args(Pooling):
            return Sums(cast(Pooling, pooling), tuple(float(number) for number in numbers))
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    raise ValueError(f"no figure of a text: {value!r}")


def pooled(figures: Figures) -> float | None:
    """Return the figure over all texts; None where it is 0 over 0.

    Raises:
        ValueError: if there is none, or they are of different kinds.
    """
    if _are_numbers(figures):
        return float(np.mean(_numbers(figures)))
    value = float(_pool(figures)(_columns(figures).sum(axis=0)[None])[0])
    return None if np.isnan(value) else value


def pool_sums(pooling: Pooling, sums: Array) -> Array:
    """Return the figure of each row of sums (row, number); not a number where it is 0 over 0."""
    return _POOLS[pooling](sums)


def figure_interval(figures: Figures, patients: Sequence[str]) -> Interval | None:
    """Return the figure over all texts with its patient-clustered interval; None where it is 0 over 0.

    Args:
        figures: one per text.
        patients: whose text it is.
    """
    value = pooled(figures)
    if value is None:
        return None
    if _are_numbers(figures):
        return _mean_interval(_numbers(figures), patients)
    (columns,), owners = _with_a_say([_columns(figures)], patients)
    if _kind(figures) == "ratio":
        return ratio_interval(columns[:, 0], columns[:, 1], owners)
    return _bootstrap(value, [columns], owners, lambda sums: _pool(figures)(sums[0]))


def change_interval(before: Figures, after: Figures, patients: Sequence[str]) -> Interval | None:
    """Return how much larger the figure is over `after` than over `before`, texts about the same cases.

    Args:
        before: one per text.
        after: one per text, in the same order.
        patients: whose text it is.

    Raises:
        ValueError: if the lengths or the kinds differ.
    """
    if len(before) != len(after):
        raise ValueError(f"a change needs two figures per text, got {len(before)} and {len(after)}")
    if _are_numbers(before) and _are_numbers(after):
        return paired_interval(_numbers(after), _numbers(before), patients)
    pool = _pool([*before, *after])
    old, new = pooled(before), pooled(after)
    if old is None or new is None:
        return None
    sides, owners = _with_a_say([_columns(before), _columns(after)], patients)
    return _bootstrap(new - old, sides, owners, lambda sums: pool(sums[1]) - pool(sums[0]))


def change_interval_over_seeds(
    pairs: Sequence[tuple[Figures, Figures]], patients: Sequence[Sequence[str]], *, patients_shared: bool
) -> Interval | None:
    """Return the mean over training seeds of the change, resampling seeds, then patients.

    Args:
        pairs: before and after, one pair per seed.
        patients: whose texts they are, one sequence per seed.
        patients_shared: the seeds were tested on the same patients, so one draw serves all of them.

    Raises:
        ValueError: if the kinds differ, or shared patients are missing from a seed.
    """
    every = [figure for pair in pairs for side in pair for figure in side]
    if _are_numbers(every):
        changes = [np.subtract(_numbers(after), _numbers(before)) for before, after in pairs]
        seeds = [seed for seed, owners in enumerate(patients) for _ in owners]
        names = [owner for owners in patients for owner in owners]
        return hierarchical_interval(np.concatenate(changes), seeds, names, patients_shared=patients_shared)
    pool = _pool(every)
    ends = [(pooled(before), pooled(after)) for before, after in pairs]
    known = [new - old for old, new in ends if old is not None and new is not None]
    if len(known) < len(pairs):
        return None
    if patients_shared and len({frozenset(owners) for owners in patients}) > 1:
        raise ValueError("patients_shared: every seed must be tested on the same patients, and they differ")
    value = float(np.mean(known))
    spoken = [
        _with_a_say([_columns(side) for side in pair], owners)
        for pair, owners in zip(pairs, patients, strict=True)
    ]
    texts = sum(len(owners) for _, owners in spoken)
    fewest = min(len(set(owners)) for _, owners in spoken)
    if fewest < FEWEST_PATIENTS:
        return too_few(value, texts, fewest)
    if patients_shared:  # one draw serves all seeds, so each must hold whoever has a say in any
        judged = {owner for _, owners in spoken for owner in owners}
        spoken = [
            _of(judged, [_columns(side) for side in pair], owners)
            for pair, owners in zip(pairs, patients, strict=True)
        ]
    patients = [owners for _, owners in spoken]
    sums = [[_by_patient(side, owners) for side in sides] for sides, owners in spoken]
    dice = np.random.default_rng(0)
    places = dice.integers(len(pairs), size=(DRAWS, len(pairs)))  # (draw, place) -> seed
    drawn = np.zeros(DRAWS)
    common = _drawn([side for pair in sums for side in pair], dice) if patients_shared else None
    for place in range(len(pairs)):
        for seed in range(len(pairs)):
            if common is not None:
                old, new = common[2 * seed : 2 * seed + 2]
            else:
                old, new = _drawn(sums[seed], dice)
            drawn += np.where(places[:, place] == seed, pool(new) - pool(old), 0.0) / len(pairs)
    low, high = percentiles(drawn[~np.isnan(drawn)], LEVEL)
    total = len({owner for owners in patients for owner in owners})
    count = total if patients_shared else sum(len(set(owners)) for owners in patients)
    return Interval(value=value, low=low, high=high, values=texts, patients=count, note=f"{len(pairs)} seeds")


def _mean_interval(values: Array, patients: Sequence[str]) -> Interval:
    """Return a mean's interval; none where all values are equal, since their scale is not known."""
    clusters = len(set(patients))
    if np.ptp(values) == 0 and clusters >= FEWEST_PATIENTS:
        note = "no interval: all values are equal"
        return Interval(
            value=float(values[0]), low=None, high=None, values=len(values), patients=clusters, note=note
        )
    return mean_interval(values, patients)


def _bootstrap(
    value: float,
    sides: Sequence[Array],
    patients: Sequence[str],
    figure: Callable[[Sequence[Array]], Array],
) -> Interval:
    """Estimate a figure of sums; every side is resampled by the same patients."""
    texts, clusters = len(sides[0]), len(set(patients))
    if clusters < FEWEST_PATIENTS:
        return too_few(value, texts, clusters)
    sums = [_by_patient(side, patients) for side in sides]
    drawn = figure(_drawn(sums, np.random.default_rng(0)))
    drawn = drawn[~np.isnan(drawn)]
    if not len(drawn) or np.ptp(drawn) == 0:
        note = "no interval: every resample gives the same"
        return Interval(value=value, low=None, high=None, values=texts, patients=clusters, note=note)
    low, high = percentiles(drawn, LEVEL)
    return Interval(value=value, low=low, high=high, values=texts, patients=clusters)


def _with_a_say(sides: Sequence[Array], patients: Sequence[str]) -> tuple[list[Array], list[str]]:
    """Leave out texts that add zeros alone: they move no figure, and their patients bound none."""
    has_say = np.any([side.any(axis=1) for side in sides], axis=0)
    owners = [patient for patient, here in zip(patients, has_say, strict=True) if here]
    return [side[has_say] for side in sides], owners


def _of(chosen: Set[str], sides: Sequence[Array], patients: Sequence[str]) -> tuple[list[Array], list[str]]:
    is_chosen = np.array([patient in chosen for patient in patients])
    return [side[is_chosen] for side in sides], [patient for patient in patients if patient in chosen]


def _by_patient(columns: Array, patients: Sequence[str]) -> Array:
    return np.stack([by_patient(column, patients) for column in columns.T], axis=1)


def _drawn(sides: Sequence[Array], dice: np.random.Generator) -> list[Array]:
    """Return the sums of each side over patients drawn with replacement; shape (draw, number) each."""
    sums = np.stack(resampled([column for side in sides for column in side.T], DRAWS, dice), axis=1)
    edges = np.cumsum([side.shape[1] for side in sides])[:-1]
    return list(np.split(sums, edges, axis=1))


def _are_numbers(figures: Figures) -> bool:
    return not any(isinstance(figure, Sums) for figure in figures)


def _numbers(figures: Figures) -> Array:
    return np.asarray(figures, dtype=np.float64)


def _columns(figures: Figures) -> Array:
    return np.array([figure.numbers for figure in figures if isinstance(figure, Sums)], dtype=np.float64)


def _kind(figures: Figures) -> Pooling:
    kinds = {
        (figure.pooling, len(figure.numbers)) if isinstance(figure, Sums) else None for figure in figures
    }
    if len(kinds) != 1 or None in kinds:
        raise ValueError(f"figures of one name must be of one kind, got {sorted(map(str, kinds))}")
    (kind,) = kinds
    return cast(tuple[Pooling, int], kind)[0]


def _pool(figures: Figures) -> Callable[[Array], Array]:
    return _POOLS[_kind(figures)]


def _ratio(sums: Array) -> Array:
    with np.errstate(invalid="ignore"):
        return np.asarray(
            np.where(sums[:, 1] > 0, sums[:, 0] / np.where(sums[:, 1] > 0, sums[:, 1], 1), np.nan)
        )


def _mean_ratio(sums: Array) -> Array:
    above, below = sums[:, 0::2], sums[:, 1::2]
    known = below > 0
    ratios = np.where(known, above / np.where(known, below, 1), 0.0)
    count = known.sum(axis=1)
    return np.asarray(np.where(count > 0, ratios.sum(axis=1) / np.maximum(count, 1), np.nan))


def _difference(sums: Array) -> Array:
    return _ratio(sums[:, :2]) - _ratio(sums[:, 2:])


def _bleu(sums: Array) -> Array:
    from sacrebleu.metrics.bleu import BLEU

    order = (sums.shape[1] - 2) // 2
    rows = sums.astype(np.int64).tolist()
    scores = [
        BLEU.compute_bleu(row[:order], row[order:-2], row[-2], row[-1], max_ngram_order=order).score
        for row in rows
    ]
    return np.array(scores) / 100


_POOLS: Mapping[Pooling, Callable[[Array], Array]] = {
    "ratio": _ratio,
    "mean_ratio": _mean_ratio,
    "difference": _difference,
    "bleu": _bleu,
}
