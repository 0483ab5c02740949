"""Reward `format-penalty`: invalid output costs a little, and a valid one earns nothing by itself."""

from collections.abc import Mapping, Sequence
from typing import Annotated

from annotated_types import Gt

from evidcore.api import Reward, Rollout, Score
from evidcore.case import Verdict


class FormatPenalty(Reward):
    """0 for an answer in its task's strict format all of whose calls could be read, else minus the penalty.

    A call that can be read and not be carried out, such as one with a box that is too small, costs nothing.
    As a `gate` it is always closed, since it is never above 0; `format` is for that.

    Args:
        penalty: what invalid output costs; the values lie from minus this to 0.

    Source:
        Jiang et al. 2026, MedVR, arXiv:2604.08203: a small negative value for invalid output, not published
        how small. 0.2 is that of DeepEyes (github Visual-Agent/DeepEyes @6c5e796).
    """

    judges = frozenset({"format"})

    def __init__(self, *, penalty: Annotated[float, Gt(0)] = 0.2) -> None:
        self.penalty = penalty
        self.bounds = (-penalty, 0.0)

    def __call__(self, rollouts: Sequence[Rollout], earlier: Mapping[str, Sequence[Verdict]]) -> list[Score]:
        return [self._judge(rollout) for rollout in rollouts]

    def _judge(self, rollout: Rollout) -> Score:
        unread = next((item.error for item in rollout.actions if item.error and not item.tool), None)
        fault = rollout.answer.malformed or unread
        return Score(value=-self.penalty, reason=fault) if fault else Score(value=0.0)
