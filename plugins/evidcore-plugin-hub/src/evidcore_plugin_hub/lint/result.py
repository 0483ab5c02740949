"""What lint found of a component: plain data, which a manifest can hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from evidcore.contracts.judging import Outcome

ORDER: tuple[Outcome, ...] = ("not applicable", "fine", "note", "alarm")  # the worst last


@dataclasses.dataclass(frozen=True, kw_only=True)
class LintCheck:
    """What one check found."""

    check: str
    outcome: Outcome
    says: str  # a sentence with its figures
    guards: str = ""  # the published failure that it guards against
    task: str = ""  # asked by which; empty: none was
    figures: Mapping[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LintResult:
    """Everything that was found of one component, or of a recipe's rewards together."""

    kind: str
    name: str
    package: str = ""
    version: str = ""
    judges: Sequence[str] | None = None  # what a reward says it judges; None: it does not say
    checks: Sequence[LintCheck] = ()

    @property
    def outcome(self) -> Outcome:
        """Return the worst outcome of its checks."""
        return max((one.outcome for one in self.checks), key=ORDER.index, default="not applicable")

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON values; `from_json` is the inverse."""
        table = dataclasses.asdict(self)
        table["checks"] = [dataclasses.asdict(one) for one in self.checks]
        return {**table, "outcome": self.outcome}

    @classmethod
    def from_json(cls, table: Mapping[str, Any]) -> LintResult:
        """Read back what `to_json` gave."""
        known = {key: value for key, value in table.items() if key != "outcome"}
        return cls(**{**known, "checks": [LintCheck(**one) for one in table["checks"]]})
