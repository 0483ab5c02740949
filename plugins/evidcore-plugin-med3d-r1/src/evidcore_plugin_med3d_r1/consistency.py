"""Reward `report-consistency`: does the reasoning say what the radiologist's report says?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from evidcore.case import Rollout, Score, Unscored, Verdict
from evidcore.contracts import Reward, Scorer

# Steps (from this score on, this reward) on the scale of a reward model's raw score, whose zero is "neither
# agrees nor disagrees". Scorers speak 0..1: a raw score r is read as 1 / (1 + exp(-r)), so 0.5 is raw 0.
LEVELS: Mapping[str, tuple[tuple[float, float], ...]] = {
    # github laihaoran/Med3D-R1 @17ea522: <0 -> 0, <0.2 -> 0.2, <0.5 -> 0.4, <1.0 -> 0.6, <1.6 -> 0.8, else 1
    "released": ((0.0, 0.2), (0.2, 0.4), (0.5, 0.6), (1.0, 0.8), (1.6, 1.0)),
    # arXiv:2602.01200 gives the values 0, 0.5, 0.8, 1; the thresholds are ours, as it gives none
    "paper": ((0.0, 0.5), (0.5, 0.8), (1.0, 1.0)),
}


class ReportConsistency(Reward):
    """Agreement of the think text with the case's report, in levels.

    It can be earned without choosing rightly; `gate = "choice-accuracy"` in the recipe pays only for reasons
    behind right answers (the paper does not gate).

    Args:
        scorer: what compares the texts, in 0..1.
        levels: which table turns agreement into reward; "none" keeps the agreement itself.

    Source:
        Lai et al. 2026, Med3D-R1, arXiv:2602.01200. The released code compares the whole completion with the
        option's text instead of the think text with the report; here it is as in the paper.
    """

    def __init__(self, *, scorer: Scorer, levels: Literal["released", "paper", "none"] = "released") -> None:
        self.scorer = scorer
        self.levels = levels

    def __call__(
        self, rollouts: Sequence[Rollout], earlier: Mapping[str, Sequence[Verdict]]
    ) -> Sequence[Score | Unscored | None]:
        """Compare every think text with its case's report in one call of the scorer."""
        verdicts: list[Score | Unscored | None] = [_missing(rollout) for rollout in rollouts]
        open_places = [place for place, verdict in enumerate(verdicts) if verdict is None]
        thoughts = [rollouts[place].answer.think or "" for place in open_places]
        reports = [_report(rollouts[place]) for place in open_places]
        if not open_places:
            return verdicts
        agreements = self.scorer(thoughts, reports)
        for place, agreement in zip(open_places, agreements, strict=True):
            verdicts[place] = self._judge(agreement)
        return verdicts

    def _judge(self, agreement: float | None) -> Score | Unscored:
        if agreement is None:
            return Unscored(kind="not-applicable", reason="the scorer finds nothing to compare")
        value = agreement if self.levels == "none" else level(agreement, LEVELS[self.levels])
        return Score(
            value=value,
            parts={"agreement": agreement},
            reason=f"the think text agrees with the report to {agreement:.2f}",
        )


def level(agreement: float, steps: Sequence[tuple[float, float]]) -> float:
    """Return the reward of the highest step that `agreement` (0..1) reaches, 0 below the first."""
    if not 0.0 <= agreement <= 1.0:
        raise ValueError(f"an agreement must lie in 0..1, got {agreement!r}")
    edge = agreement in (0.0, 1.0)
    raw = math.copysign(math.inf, agreement - 0.5) if edge else math.log(agreement / (1.0 - agreement))
    return max((value for start, value in steps if raw >= start), default=0.0)


def _missing(rollout: Rollout) -> Unscored | None:
    if rollout.prompt.case.report is None:
        return Unscored(kind="not-applicable", reason=f"case {rollout.prompt.case.id!r} has no report")
    if not rollout.answer.think:
        return Unscored(kind="not-applicable", reason="the answer has no think text")
    return None


def _report(rollout: Rollout) -> str:
    report = rollout.prompt.case.report
    return report.text if report is not None else ""
