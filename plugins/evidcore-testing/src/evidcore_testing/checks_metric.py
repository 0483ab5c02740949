"""Check of the kind metric."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import get_args

from evidcore.api import Case, Metric, Report, Unscored
from evidcore.contracts import Measured, TextSample, Totals
from evidcore.contracts.judging import TextKind
from evidcore.evaluate.pooling import Figure, pooled
from evidcore_testing.checks_text import REPORT, SPANS
from evidcore_testing.clauses import close, raises_nothing, require

OTHER = "Small pleural effusion on both sides. The lungs show no emphysema. There is a hiatal hernia."
_UNITS = ("rate", "score", "plain")
_SLACK = 1e-9


def written_texts(texts: Sequence[str] = (REPORT, OTHER)) -> list[TextSample]:
    """Return texts that repeat their references: the best that can be written.

    Args:
        texts: references; the first carries labelled sentences where it is `REPORT`.
    """
    references = [Report(text=text, spans=SPANS if text == REPORT else ()) for text in texts]
    cases = [Case(id=f"case-{n}", patient=f"patient-{n}", volumes=()) for n in range(len(texts))]
    return [
        TextSample(case=case, asked="Write the report.", text=report.text, reference=report)
        for case, report in zip(cases, references, strict=True)
    ]


def check_metric(metric: Metric, *, texts: Sequence[TextSample] | None = None) -> None:
    """Assert the contract of a metric.

    - it says in which unit it measures and what it reads;
    - a Measured or an Unscored with a reason per text;
    - every number is finite, and figures of one name pool alike;
    - notes and remarks speak of figures that it gives;
    - equal calls give equal figures;
    - the order of texts changes nothing;
    - an empty text, an empty reference and a missing one do not raise;
    - a text that repeats its reference earns no less than an empty one.

    Args:
        metric: the component under test.
        texts: at least two that differ, each equal to its reference.
    """
    given = list(texts or written_texts())
    clause = "a metric says in which unit it measures and what it reads"
    require(metric.unit in _UNITS, metric, clause, f"got the unit {metric.unit!r}")
    known = bool(metric.reads) and metric.reads <= set(get_args(TextKind))
    require(known, metric, clause, f"got {sorted(metric.reads)}")
    first = _measured(metric, given)
    require(any(isinstance(one, Measured) for one in first), metric, "some text is measured", f"got {first}")
    again = _measured(metric, given)
    require(_same(first, again), metric, "equal calls give equal figures", f"{first}, then {again}")
    turned = _measured(metric, given[::-1])[::-1]
    require(_same(first, turned), metric, "the order of texts changes nothing", f"{first}, then {turned}")
    names = {name for one in first if isinstance(one, Measured) for name in one.figures}
    clause = "notes and remarks speak of figures that it gives"
    remarks = {name for one in first if isinstance(one, Measured) for name in one.remarks}
    spoken = metric.notes().keys() | remarks
    require(spoken <= names, metric, clause, f"{sorted(spoken - names)} are none of {sorted(names)}")
    empty = [dataclasses.replace(text, text="") for text in given]
    worst = _measured(metric, empty)
    for strange in (Report(text=""), Report(text=" \n"), None):
        _measured(metric, [dataclasses.replace(given[0], reference=strange), *given[1:]])
    for name, value in _pooled(metric, worst).items():
        best = _pooled(metric, first).get(name)
        is_fair = best is None or value is None or best >= value - _SLACK
        said = f"{name}: {best} for the references, {value} for empty texts"
        require(is_fair, metric, "the reference earns no less than an empty text", said)


def _measured(metric: Metric, texts: Sequence[TextSample]) -> list[Measured | Unscored]:
    shown = [(text.text[:20], text.reference and text.reference.text[:20]) for text in texts]
    with raises_nothing(metric, "any text is measured or said not to be", f"{shown}"):
        found = list(metric(texts))
    clause = "a Measured or an Unscored with a reason per text"
    require(len(found) == len(texts), metric, clause, f"got {len(found)} for {len(texts)}")
    for one in found:
        is_told = isinstance(one, Measured) or (isinstance(one, Unscored) and bool(one.reason))
        require(is_told, metric, clause, f"got {one!r}")
        for name, figure in (one.figures if isinstance(one, Measured) else {}).items():
            numbers = figure.numbers if isinstance(figure, Totals) else (figure,)
            is_sound = all(math.isfinite(number) for number in numbers)
            require(is_sound, metric, "every number is finite", f"got {name} = {figure!r}")
    _pooled(metric, found)
    return found


def _pooled(metric: Metric, found: Sequence[Measured | Unscored]) -> Mapping[str, float | None]:
    """Return the figures over all texts but differences, which have no better side."""
    by_name: dict[str, list[Figure]] = {}
    for one in found:
        for name, figure in (one.figures if isinstance(one, Measured) else {}).items():
            by_name.setdefault(name, []).append(figure)
    with raises_nothing(metric, "figures of one name pool alike", f"{sorted(by_name)}"):
        pools = {name: pooled(figures) for name, figures in by_name.items()}
    return {
        name: value
        for name, value in pools.items()
        if not any(isinstance(one, Totals) and one.pooling == "difference" for one in by_name[name])
    }


def _same(one: Sequence[Measured | Unscored], other: Sequence[Measured | Unscored]) -> bool:
    return all(_close(first, second) for first, second in zip(one, other, strict=True))


def _close(one: Measured | Unscored, other: Measured | Unscored) -> bool:
    if isinstance(one, Unscored) or isinstance(other, Unscored):
        return type(one) is type(other)
    return one.figures.keys() == other.figures.keys() and all(
        close(first, second)
        for name in one.figures
        for first, second in zip(_flat(one.figures[name]), _flat(other.figures[name]), strict=True)
    )


def _flat(figure: Figure) -> tuple[float, ...]:
    return figure.numbers if isinstance(figure, Totals) else (figure,)
