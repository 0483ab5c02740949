"""Answers that are measured by plain numbers: rows, lines and values for evaluations of one's own."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from evidcore.case import Answer
from evidcore.contracts import Answers, EvalResult, Row
from evidcore.evaluate.answer_record import AnswerRecord, question_of, unknown_patients
from evidcore.evaluate.bootstrap import mean_interval
from evidcore.evaluate.measuring import Measurement, TextFigures
from evidcore.evaluate.pooling import pooled


@dataclasses.dataclass(frozen=True, kw_only=True)
class NumericResult(EvalResult):
    """Answers and what was measured of each."""

    name: str
    answers: Sequence[AnswerRecord]
    measured: Measurement

    @property
    def clusters(self) -> tuple[str, ...]:
        return tuple(answer.cluster for answer in self.answers)

    def values(self, metric: str) -> tuple[float, ...]:
        """Return a figure of each question; one that has none, or 0 over 0, counts as 0."""
        if metric == "format_rate":
            return tuple(float(answer.malformed is None) for answer in self.answers)
        return tuple(pooled([text.figures.get(metric, 0.0)]) or 0.0 for text in self.measured.texts)

    def unit(self, metric: str) -> str:
        return self.measured.units.get(metric, "")

    def rows(self) -> list[Row]:
        """Return a row for each figure, all of them shown at a glance."""
        unknown = unknown_patients(self.answers)
        rows = self.measured.rows(self.name, self.clusters)
        notes = ["; ".join(part for part in (unknown, row.note) if part) for row in rows]
        pairs = zip(rows, notes, strict=True)
        return [dataclasses.replace(row, note=note, is_headline=True) for row, note in pairs]

    def mean_row(self, metric: str, *, is_headline: bool = True) -> Row:
        """Return the row of the mean of a metric's `values`."""
        mean, note = mean_interval(self.values(metric), self.clusters), unknown_patients(self.answers)
        return Row.of(self.name, metric, mean, note=note, is_headline=is_headline)

    def lines(self) -> list[dict[str, Any]]:
        """Return what `answers/<stage>.jsonl` holds of each answer, its figures with it."""
        return self.measured.beside([answer.line() for answer in self.answers])


def numeric_result(
    name: str, given: Answers[Answer], figures: Sequence[Mapping[str, float]], units: Mapping[str, str]
) -> NumericResult:
    """Return answers with their figures.

    `figures` are of each answer, by metric; one that an answer lacks was not measured. `units` are as in
    `Row.unit`.
    """
    texts = []
    for item, answer in zip(figures, given.said, strict=True):
        missing = {metric: answer.malformed or "not told" for metric in units if metric not in item}
        texts.append(TextFigures(figures=dict(item), unscored=missing))
    known = {metric: metric for metric in units if any(metric in item for item in figures)}
    measured = Measurement(texts=tuple(texts), units=units, notes={}, sources=known)
    answers = [
        AnswerRecord(**question_of(prompt, given.condition), text=answer.text, malformed=answer.malformed)
        for prompt, answer in zip(given.prompts, given.said, strict=True)
    ]
    return NumericResult(name=name, answers=answers, measured=measured)
