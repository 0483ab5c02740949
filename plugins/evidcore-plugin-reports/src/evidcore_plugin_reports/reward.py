"""Reward `report-findings`: F1 of the findings that a report affirms against those of the case."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal

from evidcore.api import Labeler, Reward, Rollout, Score, Unscored
from evidcore.case import Verdict
from evidcore.contracts import LabelError
from evidcore_plugin_reports.agreement import compare_findings, is_read
from evidcore_plugin_reports.labelers import NegationRules, Vocabulary

UNREAD = Score(value=0.0, reason="nothing of it was read: no finding, and not that all is normal")
Scores = Sequence[Score | Unscored | None]


class ReportFindings(Reward):
    """F1 of the findings that the written report affirms against those of the case.

    Findings that the case calls uncertain, or knows nothing of, are left out. Where then neither affirms any,
    the report earns 1, and 0 if nothing of it was read. Other tasks, and cases without findings, are not
    applicable.

    Args:
        details: what must agree too where the case knows it: a finding on the wrong side is one too many, and
            one that is missed.
        labeler: what reads the report; where none is named, `negation-rules` for the data sets' findings.
    """

    judges = frozenset({"correctness"})
    declared = MappingProxyType({"malformed": "reads any report, also beside evidence that cannot be read"})

    def __init__(
        self,
        vocabulary: Vocabulary = tuple,
        *,
        details: Sequence[Literal["side", "malignant", "location"]] = (),  # without "side", GRPO loses sides
        labeler: Labeler | None = None,
    ) -> None:
        self.details = details
        self.labeler = labeler or NegationRules(vocabulary)
        self.audit_exemption = self.labeler.audit_exemption

    def __call__(self, rollouts: Sequence[Rollout], earlier: Mapping[str, Sequence[Verdict]]) -> Scores:
        """Judge each answer by itself; equal reports are read once."""
        verdicts = [self._without_reading(rollout) for rollout in rollouts]
        places = [place for place, verdict in enumerate(verdicts) if verdict is None]
        read = self.labeler.read_once(rollouts[place].answer.report or "" for place in places)
        for place in places:
            result, known = read[rollouts[place].answer.report or ""], rollouts[place].prompt.case.findings
            if isinstance(result, LabelError):
                verdicts[place] = Unscored(kind="failed", reason=str(result))
            else:
                agreement = compare_findings(result, known, known_only=True, details=self.details)
                text = rollouts[place].answer.report or ""
                verdicts[place] = agreement.score() if is_read(text, result) else UNREAD
        return verdicts

    @staticmethod
    def _without_reading(rollout: Rollout) -> Score | Unscored | None:
        """Return the verdict on an answer whose report need not be read, None on others."""
        case = rollout.prompt.case
        if "letter" in rollout.prompt.reference:
            return Unscored(kind="not-applicable", reason="the task asks for a letter, not for a report")
        if not case.findings:
            return Unscored(kind="not-applicable", reason=f"no findings are known of case {case.id!r}")
        if rollout.answer.report is None:
            return Score(value=0.0, reason=rollout.answer.malformed or "no report")
        return None
