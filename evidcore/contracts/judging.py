"""What answers and texts are judged by."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from evidcore.case import Crop, Finding, Rollout, Score, Unscored, Verdict


class Reward(ABC):
    """Judge sampled answers; higher is better. Core gives: `policy` (a `Policy`, the model being trained).

    `earlier` holds the verdicts of the rewards before this one in the recipe, by name.
    """

    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)

    @abstractmethod
    def __call__(
        self, rollouts: Sequence[Rollout], earlier: Mapping[str, Sequence[Verdict]]
    ) -> Sequence[Score | Unscored | None]:
        """Return a verdict per rollout; rollouts come as whole groups.

        None is short for "not applicable". Missing is not zero: an unscored rollout moves no advantage.
        """


class Reader(ABC):
    """Read images without seeing the report: a judge, or any model to be audited. Core gives: nothing."""

    deterministic: ClassVar[bool]

    @abstractmethod
    def __call__(self, crops: Sequence[Crop], question: str) -> str | None:
        """Return an answer, None if there is none."""


class Labeler(ABC):
    """Find findings in text. Core gives: nothing."""

    @abstractmethod
    def __call__(self, text: str) -> tuple[Finding, ...]:
        """Return the findings that `text` speaks of; each span lies inside the text."""


class Scorer(ABC):
    """Compare texts. Core gives: nothing."""

    @abstractmethod
    def __call__(self, candidates: Sequence[str], references: Sequence[str]) -> Sequence[float | None]:
        """Return an agreement in 0..1 per pair, None where nothing can be compared; equal texts score 1."""
