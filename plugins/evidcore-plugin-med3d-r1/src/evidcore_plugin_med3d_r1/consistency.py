"""Reward `report-consistency`: does the reasoning say what the radiologist's report says?"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal

from evidcore_plugin_reports.agreement import as_agreement

from evidcore.api import Reward, Rollout, Score, Scorer, Unscored
from evidcore.case import Verdict
from evidcore.text.tags import LETTERS

# Steps (from this score on, this reward) on the scale of a reward model's raw score, whose zero is "neither
# agrees nor disagrees". Scorers speak 0..1: a raw score r is read as `as_agreement(r)`, so 0.5 is raw 0.
LEVELS: Mapping[str, tuple[tuple[float, float], ...]] = {
    # github laihaoran/Med3D-R1 @17ea522: <0 -> 0, <0.2 -> 0.2, <0.5 -> 0.4, <1.0 -> 0.6, <1.6 -> 0.8, else 1
    "released": ((0.0, 0.2), (0.2, 0.4), (0.5, 0.6), (1.0, 0.8), (1.6, 1.0)),
    # arXiv:2602.01200 gives the values 0, 0.5, 0.8, 1; the thresholds are ours, as it gives none
    "paper": ((0.0, 0.5), (0.5, 0.8), (1.0, 1.0)),
}
_UNGATED = "agreement with the report is all that it pays for; the paper does not gate it"


class ReportConsistency(Reward):
    """Agreement of the reasoning with the case's report, in levels.

    It can be earned without choosing rightly; `gate = "choice-accuracy"` in the recipe pays only for reasons
    behind right answers (the paper does not gate).

    Args:
        scorer: what compares the texts, in 0..1. It is told the prompt's words, which a reward model needs.
        texts: "paper" compares the think text with the report; "released", as the released code does, the
            whole completion with the right option's words. No report is needed then.
        levels: which table turns agreement into reward; "none" keeps the agreement itself.

    Source:
        Lai et al. 2026, Med3D-R1, arXiv:2602.01200, and github laihaoran/Med3D-R1 @17ea522,
        stage2_rl/src/open_r1/grpo_3d.py, `rm_reward`.
    """

    declared = MappingProxyType({"copied report": _UNGATED})

    def __init__(
        self,
        *,
        scorer: Scorer,
        texts: Literal["paper", "released"] = "paper",
        levels: Literal["released", "paper", "none"] = "released",
    ) -> None:
        self.scorer = scorer
        self.audit_exemption, self.detects_negation = scorer.audit_exemption, scorer.detects_negation
        self.judges = frozenset({"report" if texts == "paper" else "correctness"})
        self.compared = _think_and_report if texts == "paper" else _completion_and_option
        self.levels = levels

    def ready(self) -> None:
        self.scorer.ready()

    def __call__(
        self, rollouts: Sequence[Rollout], earlier: Mapping[str, Sequence[Verdict]]
    ) -> Sequence[Score | Unscored | None]:
        """Compare every pair of texts in one call of the scorer."""
        verdicts: list[Score | Unscored | None] = [None] * len(rollouts)
        pairs: dict[int, tuple[str, str]] = {}
        for place, rollout in enumerate(rollouts):
            result = self.compared(rollout)
            if isinstance(result, str):
                verdicts[place] = Unscored(kind="not-applicable", reason=result)
            else:
                pairs[place] = result
        if not pairs:
            return verdicts
        candidates, references = zip(*pairs.values(), strict=True)
        questions = [rollouts[place].prompt.words() for place in pairs]
        agreements = self.scorer(candidates, references, questions)
        for place, agreement in zip(pairs, agreements, strict=True):
            verdicts[place] = self._judge(agreement)
        return verdicts

    def _judge(self, agreement: float | None) -> Score | Unscored:
        if agreement is None:
            return Unscored(kind="not-applicable", reason="the scorer finds nothing to compare")
        value = agreement if self.levels == "none" else level(agreement, LEVELS[self.levels])
        reason = f"the texts agree to {agreement:.2f}"
        return Score(value=value, parts={"agreement": agreement}, reason=reason)


def level(agreement: float, steps: Sequence[tuple[float, float]]) -> float:
    """Return the reward of the highest step that `agreement` (0..1) reaches, 0 below the first."""
    if not 0.0 <= agreement <= 1.0:
        raise ValueError(f"an agreement must lie in 0..1, got {agreement!r}")
    return max((value for start, value in steps if agreement >= as_agreement(start)), default=0.0)


def _think_and_report(rollout: Rollout) -> tuple[str, str] | str:
    """Return the two texts, or why there are none."""
    report = rollout.prompt.case.report
    if report is None:
        return f"case {rollout.prompt.case.id!r} has no report"
    return (rollout.answer.think, report.text) if rollout.answer.think else "the answer has no think text"


def _completion_and_option(rollout: Rollout) -> tuple[str, str] | str:
    """Return the two texts, or why there are none."""
    reference = rollout.prompt.reference
    if not reference.get("options") or not reference.get("letter"):
        return f"prompt {rollout.prompt.id!r} has no right option"
    return rollout.text, reference["options"][LETTERS.index(reference["letter"])]
