"""Answers that are measured by plain numbers: rows, lines and values for evaluations of one's own."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from evidcore.case import Answer
from evidcore.contracts import Answers, EvalResult, Row
from evidcore.evaluate.answer_record import question_of, unknown_patients
from evidcore.evaluate.measuring import Measurement, TextFigures
from evidcore.evaluate.reference_lines import cluster_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class NumericResult(EvalResult):
    """Answers and what was measured of each."""

    name: str
    given: Answers[Answer]
    figures: Sequence[Mapping[str, float]]  # of each answer
    measured: Measurement  # the same, for tables

    @property
    def clusters(self) -> tuple[str, ...]:
        return tuple(cluster_of(prompt) for prompt in self.given.prompts)

    def values(self, metric: str) -> tuple[float, ...]:
        """Return a figure of each question; one that has none counts as 0."""
        return tuple(float(figures.get(metric, 0.0)) for figures in self.figures)

    def unit(self, metric: str) -> str:
        return self.measured.units[metric]

    def rows(self) -> list[Row]:
        """Return a row for each figure, all of them shown at a glance."""
        note = unknown_patients(prompt.case.patient for prompt in self.given.prompts)
        rows = self.measured.rows(self.name, self.clusters)
        notes = ["; ".join(part for part in (note, row.note) if part) for row in rows]
        pairs = zip(rows, notes, strict=True)
        return [dataclasses.replace(row, note=text, is_headline=True) for row, text in pairs]

    def lines(self) -> list[dict[str, Any]]:
        """Return what `answers/<stage>.jsonl` holds of each answer, its figures with it."""
        return self.measured.beside([
            {
                **question_of(prompt, self.given.condition), "text": answer.text,
                "malformed": answer.malformed, "images": [crop.uri() for crop in prompt.crops()],
            }
            for prompt, answer in zip(self.given.prompts, self.given.said, strict=True)
        ])  # fmt: skip


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
    metrics = {metric: metric for metric in units if any(metric in item for item in figures)}
    measured = Measurement(texts=tuple(texts), units=units, notes={}, sources=metrics)
    return NumericResult(name=name, given=given, figures=figures, measured=measured)
