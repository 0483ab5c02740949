"""Measure texts by the metrics of a stage: what each text adds, what is missing and why, and results rows."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from evidcore.case import Unscored
from evidcore.contracts import Measured, Metric, Row, TextSample, Totals
from evidcore.contracts.judging import TextKind
from evidcore.errors import ContractError
from evidcore.evaluate.bootstrap import figure_interval
from evidcore.evaluate.pooling import Figure, pooled, to_json
from evidcore.registry import blame
from evidcore.registry.factory import name_of, offer_of

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

    def __or__(self, other: TextFigures) -> TextFigures:
        return TextFigures(
            figures={**self.figures, **other.figures},
            remarks={**self.remarks, **other.remarks},
            unscored={**self.unscored, **other.unscored},
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measurement:
    """What the metrics of a stage say of a set of texts."""

    texts: tuple[TextFigures, ...]
    units: Mapping[str, str]  # by figure
    notes: Mapping[str, str]  # by figure
    sources: Mapping[str, str]  # by figure, the metric that gave it

    def __or__(self, other: Measurement) -> Measurement:
        return Measurement(
            texts=tuple(mine | theirs for mine, theirs in zip(self.texts, other.texts, strict=True)),
            units={**self.units, **other.units}, notes={**self.notes, **other.notes},
            sources={**self.sources, **other.sources},
        )  # fmt: skip

    def beside(self, lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return lines of answers with the figures of their texts; as they are where nothing was measured."""
        is_empty = not any(text.figures or text.unscored for text in self.texts)
        return [
            dict(line) | ({} if is_empty else text.line())
            for line, text in zip(lines, self.texts, strict=True)
        ]

    def rows(self, name: str, patients: Sequence[str]) -> list[Row]:
        """Return a row per figure, in the order of the metrics, then one per metric that gave none."""
        result = []
        for figure in self.sources:
            values = [text.figures[figure] for text in self.texts if figure in text.figures]
            owners = [one for one, text in zip(patients, self.texts, strict=True) if figure in text.figures]
            lacking = [text for text in self.texts if figure not in text.figures]
            missing = self._missing(self.sources[figure], lacking)
            note = "; ".join(part for part in (self.notes.get(figure, ""), missing) if part)
            interval = figure_interval(values, owners)
            unit = self.units[figure]
            if interval is None:
                row = Row(
                    name=name, metric=figure, value=None, note=note or "nothing to measure", unit=unit,
                    questions=len(values), patients=len(set(owners)),
                )  # fmt: skip
            else:
                row = Row.of(name, figure, interval, note=note, unit=unit)
            result.append(row)
        speaking, everyone = {*self.sources.values()}, len(set(patients))
        for metric in dict.fromkeys(metric for text in self.texts for metric in text.unscored):
            if metric not in speaking:
                why = self._missing(metric, self.texts)
                row = Row(name=name, metric=metric, value=None, patients=everyone, unit="plain", note=why)
                result.append(row)
        return result

    def _missing(self, metric: str, lacking: Sequence[TextFigures]) -> str:
        """Say why a metric could not measure some of the texts; "" where there are none of these."""
        if not lacking:
            return ""
        reasons = collections.Counter(text.unscored.get(metric, "not told") for text in lacking)
        figures = [
            f"{count} times {reason}" if len(reasons) > 1 else reason
            for reason, count in reasons.most_common(_MOST_REASONS)
        ]
        more = "; …" if len(reasons) > _MOST_REASONS else ""
        return f"{len(lacking)} of {len(self.texts)} not measured: {'; '.join(figures)}{more}"


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


def measure(metrics: Iterable[NamedMetric], texts: Sequence[TextSample], kind: TextKind) -> Measurement:
    """Measure texts by every metric that reads texts of this kind."""
    result = Measurement(texts=(TextFigures(),) * len(texts), units={}, notes={}, sources={})
    for named in metrics:
        if kind not in named.metric.reads:
            continue
        offer, prefix = offer_of(named.metric), named.prefix
        with blame(offer, f"measuring {len(texts)} texts"):
            measured, notes = list(named.metric(texts)), dict(named.metric.notes())
        if len(measured) != len(texts):
            raise ContractError(f"{offer}: must measure each text, got {len(measured)} for {len(texts)}.")
        rows, units, unit = list[TextFigures](), dict[str, str](), named.metric.unit
        for item, text in zip(measured, texts, strict=True):
            if isinstance(item, Unscored):
                rows.append(TextFigures(unscored={named.name: item.reason}))
                continue
            figures = {prefix + bare: figure for bare, figure in _checked(item, str(offer), text).items()}
            rows.append(
                TextFigures(figures=figures, remarks={prefix + bare: r for bare, r in item.remarks.items()})
            )
            for name, figure in figures.items():
                is_points = isinstance(figure, Totals) and figure.pooling == "difference"
                units.setdefault(name, "points" if is_points and unit == "rate" else unit)
        if taken := [name for name in units if name in result.sources]:
            raise ContractError(
                f"{offer}: gives {taken[0]!r}, which metric {result.sources[taken[0]]!r} of this stage gives "
                "too. Give one of the two a name = '…' in the recipe."
            )
        result |= Measurement(
            texts=tuple(rows), units=units, sources=dict.fromkeys(units, named.name),
            notes={name: notes.get(name.removeprefix(prefix), "") for name in units},
        )  # fmt: skip
    return result


def _checked(measured: Measured, offer: str, text: TextSample) -> Mapping[str, Figure]:
    for name, figure in measured.figures.items():
        numbers = figure.numbers if isinstance(figure, Totals) else (figure,)
        if not all(math.isfinite(number) for number in numbers):
            raise ContractError(
                f"{offer}: {name!r} of case {text.case.id!r} must be finite, got {figure!r}. "
                "What cannot be measured is left out."
            )
        if isinstance(figure, Totals):
            pooled([figure])  # of a known kind
    return measured.figures
