"""Reward answers that name the side of the body that the report names."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated

from annotated_types import Ge, Le

from evidcore.api import Reward, Rollout, Score, Unscored


def sides(text: str) -> set[str]:
    """Find the words left and right."""
    return set(re.findall(r"\b(left|right)\b", text.lower()))


class Laterality(Reward):
    """1 where an answer names exactly the sides of the report, less for each that is missing or wrong."""

    def __init__(self, *, silent: Annotated[float, Ge(0), Le(1)] = 0.0) -> None:
        """Set the score of an answer that names no side."""
        self.silent = silent

    def __call__(
        self, rollouts: Sequence[Rollout], earlier: Mapping[str, Sequence[Score | Unscored | None]]
    ) -> list[Score | None]:
        """Judge each answer by itself; None where the report names no side."""
        return [self.judge(rollout) for rollout in rollouts]

    def judge(self, rollout: Rollout) -> Score | None:
        """Compare the sides that were said with those that were meant."""
        report, said = rollout.prompt.case.report, sides(rollout.text)
        meant = sides(report.text) if report else set()
        if not meant:
            return None
        value = len(said & meant) / len(said | meant) if said else self.silent
        return Score(value=value, reason=f"said {sorted(said)}, the report says {sorted(meant)}")
