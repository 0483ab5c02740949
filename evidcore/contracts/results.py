"""What a stage found: rows of figures, and the figures of its training."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

_ALWAYS = ("name", "metric", "value", "low", "high", "questions", "patients", "note")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One figure with its interval: an entry of `rows` in `results/<stage>.json`.

    A metric whose name ends in "/…" is a detail of the one before the slash.
    """

    name: str  # what was measured, mostly a task; under an audit's conditions the condition
    metric: str
    value: float | None  # None: not measured, and `note` says why
    low: float | None = None  # ends of the 95 % interval, None where there is none
    high: float | None = None
    questions: int = 0  # prompts that counted
    patients: int = 0  # clusters that the interval is drawn over
    note: str = ""
    unit: str = ""  # "rate" is written 41.2 %, "score" 0.412, "plain" as it is; empty: by the metric's name
    task: str = ""  # where `name` is not the task
    condition: str = ""  # of an audit
    is_headline: bool = False  # shown at a glance on the page
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # further columns, JSON values

    def to_json(self) -> dict[str, Any]:
        """Return the row as results files hold it; empty columns are left out."""
        found = {key: getattr(self, key) for key in _ALWAYS}
        named = {key: getattr(self, key) for key in ("unit", "task", "condition")}
        shown = {"headline": True} if self.is_headline else {}
        return found | {key: value for key, value in named.items() if value} | shown | dict(self.extra)

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Self:
        """Read a row of a results file."""
        known = {item.name for item in dataclasses.fields(cls)} - {"extra", "is_headline"}
        extra = {key: value for key, value in row.items() if key not in {*known, "headline"}}
        columns = {key: value for key, value in row.items() if key in known}
        return cls(**columns, is_headline=bool(row.get("headline")), extra=extra)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageResult:
    """What a stage leaves in `result.json` and `answers.jsonl`, beside a checkpoint."""

    rows: tuple[Row, ...] = ()
    answers: tuple[Mapping[str, Any], ...] | None = None  # lines of `answers.jsonl`; None: it asks nothing
    figures: Mapping[str, Any] | None = None  # of the training; None: the stage trains nothing
    reference_lines: Mapping[str, Mapping[str, float | None]] | None = (
        None  # by task; None: the stage measures nothing
    )
    verdict: Mapping[str, str] | None = None  # by task; None: the stage is no audit

    def to_json(self) -> dict[str, Any]:
        """Return what `result.json` holds."""
        found = {"figures": self.figures, "rows": [row.to_json() for row in self.rows]}
        found |= {"reference_lines": self.reference_lines, "verdict": self.verdict}
        return {key: value for key, value in found.items() if value is not None}
