"""Measure texts by the metrics of a stage: what each text adds, what is missing and why, and results rows.

One figure over many texts comes from what each text adds to it. A number is averaged. `Sums` are added up,
and a pool makes the figure of the totals: three pools that need no knowledge of any metric are here, and
every other one comes with the metric that it is named after.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from evidcore.case import Unscored
from evidcore.contracts import Measured, Metric, Row, Sums, TextKind, Written
from evidcore.errors import ContractError, PluginError
from evidcore.evaluate.bootstrap import figure_interval
from evidcore.evaluate.reference_lines import row
from evidcore.registry import blame, find
from evidcore.registry.factory import name_of, offer_of

Figure = float | Sums
Array = np.ndarray[Any, np.dtype[np.float64]]
Pool = Callable[[Array], Array]  # (row, number) -> (row,), not a number where it is 0 over 0


class Kind(NamedTuple):
    """What figures of one name share."""

    pooling: str
    width: int  # numbers of each


def to_json(figure: Figure) -> Any:
    """Return a figure of one text as a line of answers holds it: a number, or {"ratio": [2, 5]}."""
    return {figure.pooling: list(figure.numbers)} if isinstance(figure, Sums) else figure


def from_json(value: Any) -> Figure:
    """Read back what `to_json` wrote.

    Raises:
        ValueError: if it is no figure.
    """
    if isinstance(value, Mapping) and len(value) == 1:
        ((pooling, numbers),) = value.items()
        if isinstance(pooling, str) and isinstance(numbers, Sequence) and all(map(_is_number, numbers)):
            return Sums(pooling, tuple(float(number) for number in numbers))
    if _is_number(value):
        return float(value)
    raise ValueError(f"no figure of a text: {value!r}")


def pooled(figures: Sequence[Figure]) -> float | None:
    """Return the figure over all texts; None where it is 0 over 0.

    Raises:
        ValueError: if there is none, or they are of different kinds.
        PluginError: if the metric that pools them is not installed.
    """
    kind = kind_of(figures)
    if kind is None:
        return float(np.mean(np.asarray(figures, dtype=np.float64)))
    value = float(pool_of(kind.pooling)(columns_of(figures).sum(axis=0)[None])[0])
    return None if np.isnan(value) else value


def pool_of(pooling: str) -> Pool:
    """Return what makes figures of sums.

    Raises:
        PluginError: if it is neither a pool of the core nor an installed metric with one.
    """
    if pooling in _POOLS:
        return _POOLS[pooling]
    offer = find("metric", pooling)
    metric = offer.load()
    if isinstance(metric, type) and issubclass(metric, Metric) and metric.pool is not Metric.pool:
        return metric.pool
    raise PluginError(f"{offer}: pools no sums, and figures name it as their pooling. It lacks `pool`.")


def kind_of(figures: Sequence[Figure]) -> Kind | None:
    """Return the kind of `Sums` that all figures are; None for numbers.

    Raises:
        ValueError: if there is none, or they are of different kinds.
    """
    kinds = {Kind(one.pooling, len(one.numbers)) if isinstance(one, Sums) else None for one in figures}
    if len(kinds) != 1:
        raise ValueError(f"figures of one name must be of one kind, got {sorted(map(str, kinds))}")
    (kind,) = kinds
    return kind


def columns_of(figures: Sequence[Figure]) -> Array:
    """Return the numbers of `Sums`: (figure, number)."""
    return np.array([one.numbers for one in figures if isinstance(one, Sums)], dtype=np.float64)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


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


_POOLS: Mapping[str, Pool] = {"ratio": _ratio, "mean_ratio": _mean_ratio, "difference": _difference}


_MOST_REASONS = 2  # in a note


@dataclasses.dataclass(frozen=True, kw_only=True)
class NamedMetric:
    """A metric, what tables call it, and what stands before the names of its figures."""

    metric: Metric
    name: str
    prefix: str = ""  # "biomed_" where the recipe named it so


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextFigures:
    """What all metrics say of one text."""

    figures: Mapping[str, Figure] = dataclasses.field(default_factory=dict)
    remarks: Mapping[str, str] = dataclasses.field(default_factory=dict)
    unscored: Mapping[str, str] = dataclasses.field(default_factory=dict)  # metric -> why it has no figure

    def line(self) -> dict[str, Any]:
        """Return what a line of answers holds of it."""
        named = {name: to_json(figure) for name, figure in self.figures.items()}
        rest = {"remarks": dict(self.remarks), "unscored": dict(self.unscored)}
        return {"figures": named} | {key: value for key, value in rest.items() if value}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measurement:
    """What the metrics of a stage say of a set of texts."""

    texts: tuple[TextFigures, ...]
    units: Mapping[str, str]  # by figure
    notes: Mapping[str, str]  # by figure
    sources: Mapping[str, str]  # by figure, the metric that gave it

    def beside(self, lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return lines of answers with the figures of their texts; as they are where nothing was measured."""
        is_empty = not any(text.figures or text.unscored for text in self.texts)
        return [
            dict(line) | ({} if is_empty else text.line())
            for line, text in zip(lines, self.texts, strict=True)
        ]

    def rows(self, name: str, patients: Sequence[str]) -> list[Row]:
        """Return a results row per figure, in the order in which metrics gave them.

        Args:
            name: what results call the texts.
            patients: whose text it is.
        """
        found = []
        for figure in self.sources:
            held = [
                (text.figures[figure], patient)
                for text, patient in zip(self.texts, patients, strict=True)
                if figure in text.figures
            ]
            values, owners = [value for value, _ in held], [patient for _, patient in held]
            note = "; ".join(part for part in (self.notes.get(figure, ""), self._missing(figure)) if part)
            interval = figure_interval(values, owners)
            unit = self.units[figure]
            if interval is None:
                note = note or "nothing to measure"
                found.append(
                    Row(
                        name=name, metric=figure, value=None, note=note, unit=unit,
                        questions=len(values), patients=len(set(owners)),
                    )
                )  # fmt: skip
            else:
                found.append(row(name, figure, interval, note=note, unit=unit))
        return [*found, *self._silent(name, patients)]

    def _missing(self, figure: str) -> str:
        """Say how many texts lack a figure, and why."""
        lacking = [text for text in self.texts if figure not in text.figures]
        metric = self.sources[figure]
        said = collections.Counter(text.unscored.get(metric, "not told") for text in lacking)
        return _counted(len(lacking), len(self.texts), said)

    def _silent(self, name: str, patients: Sequence[str]) -> list[Row]:
        """Return a row for each metric that could measure none of the texts."""
        speaking = set(self.sources.values())
        silent = dict.fromkeys(
            metric for text in self.texts for metric in text.unscored if metric not in speaking
        )
        return [
            Row(
                name=name,
                metric=metric,
                value=None,
                patients=len(set(patients)),
                unit="plain",
                note=_counted(
                    len(self.texts),
                    len(self.texts),
                    collections.Counter(text.unscored[metric] for text in self.texts),
                ),
            )
            for metric in silent
        ]


def named_metrics(metrics: Sequence[Metric]) -> list[NamedMetric]:
    """Return metrics that were built from a recipe under the names that it gives them."""
    return [
        NamedMetric(
            metric=metric,
            name=name_of(metric) or offer_of(metric).name,
            prefix=f"{name_of(metric)}_" if name_of(metric) else "",
        )
        for metric in metrics
    ]


def measure(metrics: Iterable[NamedMetric], texts: Sequence[Written], kind: TextKind) -> Measurement:
    """Measure texts by every metric that reads texts of this kind.

    Raises:
        ContractError: if a metric breaks its contract, or two give figures of one name; names the package.
    """
    figures: list[dict[str, Figure]] = [{} for _ in texts]
    remarks: list[dict[str, str]] = [{} for _ in texts]
    unscored: list[dict[str, str]] = [{} for _ in texts]
    units: dict[str, str] = {}
    notes: dict[str, str] = {}
    sources: dict[str, str] = {}
    for named in metrics:
        if kind not in named.metric.reads:
            continue
        offer, label = offer_of(named.metric), named.name
        with blame(offer, f"measuring {len(texts)} texts"):
            found = list(named.metric(texts))
            said = dict(named.metric.notes())
        taken = dict(sources)
        if len(found) != len(texts):
            raise ContractError(f"{offer}: must measure each text, got {len(found)} for {len(texts)}.")
        for place, one in enumerate(found):
            if isinstance(one, Unscored):
                unscored[place][label] = one.reason
                continue
            for bare, figure in _checked(one, str(offer), texts[place]).items():
                name = named.prefix + bare
                if name in taken:
                    raise ContractError(
                        f"{offer}: gives {name!r}, which metric {taken[name]!r} of this stage gives too. "
                        "Give one of the two a name = '…' in the recipe."
                    )
                figures[place][name] = figure
                sources.setdefault(name, label)
                units.setdefault(name, _unit(named.metric, figure))
                notes.setdefault(name, said.get(bare, ""))
            remarks[place] |= {named.prefix + bare: text for bare, text in one.remarks.items()}
    parts = zip(figures, remarks, unscored, strict=True)
    return Measurement(
        texts=tuple(TextFigures(figures=one, remarks=two, unscored=three) for one, two, three in parts),
        units=units, notes=notes, sources=sources,
    )  # fmt: skip


def _checked(measured: Measured, offer: str, text: Written) -> Mapping[str, Figure]:
    for name, figure in measured.figures.items():
        numbers = figure.numbers if isinstance(figure, Sums) else (figure,)
        if not all(math.isfinite(number) for number in numbers):
            raise ContractError(
                f"{offer}: {name!r} of case {text.case.id!r} must be finite, got {figure!r}. "
                "What cannot be measured is left out."
            )
        if isinstance(figure, Sums):
            pooled([figure])  # of a known kind
    return measured.figures


def _unit(metric: Metric, figure: Figure) -> str:
    is_difference = isinstance(figure, Sums) and figure.pooling == "difference"
    return "points" if is_difference and metric.unit == "rate" else metric.unit


def _counted(missing: int, of: int, reasons: collections.Counter[str]) -> str:
    if not missing:
        return ""
    told = [
        f"{count} times {reason}" if len(reasons) > 1 else reason
        for reason, count in reasons.most_common(_MOST_REASONS)
    ]
    more = "; …" if len(reasons) > _MOST_REASONS else ""
    return f"{missing} of {of} not measured: {'; '.join(told)}{more}"
