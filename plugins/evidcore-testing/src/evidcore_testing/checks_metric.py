"""Check of the kind metric."""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import get_args

from evidcore.api import Case, Metric, Report, Unscored
from evidcore.contracts import Measured, TextSample, Totals
from evidcore.contracts.judging import TextKind
from evidcore.evaluate.pooling import Figure, pooled
from evidcore_testing.checks_text import REPORT, SPANS
from evidcore_testing.clauses import Clauses, close

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
    check = Clauses(metric)
    given = list(texts or written_texts())
    clause = "a metric says in which unit it measures and what it reads"
    check(metric.unit in _UNITS, clause, f"got the unit {metric.unit!r}")
    check(metric.reads and metric.reads <= {*get_args(TextKind)}, clause, f"got {sorted(metric.reads)}")
    first = _measured(metric, given)
    measured = [one for one in first if isinstance(one, Measured)]
    check(measured, "some text is measured", f"got {first}")
    again = _measured(metric, given)
    check(_same(first, again), "equal calls give equal figures", f"{first}, then {again}")
    turned = _measured(metric, given[::-1])[::-1]
    check(_same(first, turned), "the order of texts changes nothing", f"{first}, then {turned}")
    names = {name for one in measured for name in one.figures}
    spoken = {*metric.notes(), *(name for one in measured for name in one.remarks)}
    unknown = sorted(spoken - names)
    got = f"{unknown} are none of {sorted(names)}"
    check(not unknown, "notes and remarks speak of figures that it gives", got)
    worst = _pooled(metric, _measured(metric, [dataclasses.replace(text, text="") for text in given]))
    for strange in (Report(text=""), Report(text=" \n"), None):
        _measured(metric, [dataclasses.replace(given[0], reference=strange), *given[1:]])
    best = _pooled(metric, first)
    for name, value in worst.items():
        if value is not None and (most := best.get(name)) is not None:
            got = f"{name}: {most} for the references, {value} for empty texts"
            check(most >= value - _SLACK, "the reference earns no less than an empty text", got)


def _measured(metric: Metric, texts: Sequence[TextSample]) -> list[Measured | Unscored]:
    check = Clauses(metric)
    shown = [(text.text[:20], text.reference and text.reference.text[:20]) for text in texts]
    with check.raises_nothing("any text is measured or said not to be", f"{shown}"):
        result = list(metric(texts))
    clause = "a Measured or an Unscored with a reason per text"
    check(len(result) == len(texts), clause, f"got {len(result)} for {len(texts)}")
    for one in result:
        is_told = isinstance(one, Measured) or (isinstance(one, Unscored) and one.reason)
        check(is_told, clause, f"got {one!r}")
        for name, numbers in _numbers(one).items():
            check(all(map(math.isfinite, numbers)), "every number is finite", f"got {name} = {numbers!r}")
    _pooled(metric, result)
    return result


def _pooled(metric: Metric, measured: Sequence[Measured | Unscored]) -> Mapping[str, float | None]:
    """Return the figures over all texts but differences, which have no better side."""
    by_name: dict[str, list[Figure]] = {}
    for one in measured:
        for name, figure in (one.figures if isinstance(one, Measured) else {}).items():
            by_name.setdefault(name, []).append(figure)
    with Clauses(metric).raises_nothing("figures of one name pool alike", f"{sorted(by_name)}"):
        pools = {name: pooled(figures) for name, figures in by_name.items()}
    return {
        name: value
        for name, value in pools.items()
        if not any(isinstance(one, Totals) and one.pooling == "difference" for one in by_name[name])
    }


def _same(these: Sequence[Measured | Unscored], those: Sequence[Measured | Unscored]) -> bool:
    for one, other in zip(these, those, strict=True):
        first, second = _numbers(one), _numbers(other)
        if type(one) is not type(other) or first.keys() != second.keys():
            return False
        if not all(map(close, itertools.chain(*first.values()), itertools.chain(*second.values()))):
            return False
    return True


def _numbers(one: Measured | Unscored) -> dict[str, tuple[float, ...]]:
    """Return the numbers of a text's figures by name, in the order of the names."""
    figures = sorted(one.figures.items()) if isinstance(one, Measured) else ()
    return {name: item.numbers if isinstance(item, Totals) else (item,) for name, item in figures}
