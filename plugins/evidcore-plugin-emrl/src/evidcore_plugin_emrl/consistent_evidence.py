"""Reward `consistent-evidence`: is a slice cited where the report affirms a finding, and only there?"""

from collections.abc import Mapping, Sequence

from evidcore_plugin_reports.agreement import affirmed
from evidcore_plugin_reports.labelers import NegationRules, Vocabulary

from evidcore.api import Finding, Labeler, Reward, Rollout, Score, Unscored
from evidcore.case import Verdict
from evidcore.contracts import LabelError


class ConsistentEvidence(Reward):
    """1 where report and evidence say the same of whether there is something to see, else 0.

    A report that affirms a finding and cites `null` contradicts itself, as does one that affirms nothing and
    cites a slice. Where slices are cited for findings, those that are affirmed and those with a slice are
    compared, both over either: the Jaccard index. Nothing is asked of the case: a wrong report with any slice
    earns as much as the right one. `cross-view` leaves healthy scans out, so that without this reward `null`
    is forgotten; and where the slice is paid by nothing, slices are.

    An answer out of its form earns 0; other tasks are not applicable.

    Args:
        labeler: what reads the report; where none is named, `negation-rules` for the data sets' findings.

    Source:
        Ours; E-MRL, arXiv:2606.23888, does not tell what is written of healthy scans.
    """

    judges = frozenset({"format"})

    def __init__(self, vocabulary: Vocabulary = tuple, *, labeler: Labeler | None = None) -> None:
        self.labeler = labeler or NegationRules(vocabulary)
        self.audit_exemption = self.labeler.audit_exemption

    def __call__(
        self, rollouts: Sequence[Rollout], earlier: Mapping[str, Sequence[Verdict]]
    ) -> Sequence[Score | Unscored | None]:
        """Judge each answer by itself; equal reports are read once."""
        asked = (one.answer for one in rollouts if _is_asked(one))
        formed = (one for one in asked if one.malformed is None and one.evidence is not None)
        read = self.labeler.read_once(answer.report or "" for answer in formed)
        return [_judge(rollout, read) for rollout in rollouts]


def _is_asked(rollout: Rollout) -> bool:
    return {"shown", "targets"} <= rollout.prompt.reference.keys()


def _judge(rollout: Rollout, read: Mapping[str, Sequence[Finding] | LabelError]) -> Score | Unscored | None:
    answer = rollout.answer
    if not _is_asked(rollout):
        return None
    if answer.malformed is not None or answer.evidence is None:
        return Score(value=0.0, reason=answer.malformed or "no evidence")
    findings = read[answer.report or ""]
    if isinstance(findings, LabelError):
        return Unscored(kind="failed", reason=str(findings))
    said, cited = {*affirmed(findings)}, answer.evidence.slices.keys()
    if not cited:
        named = answer.evidence.slice is not None
        what = ", ".join(sorted(said)) or "nothing"
        reason = f"affirmed is {what}, cited is {'a slice' if named else 'none'}"
        return Score(value=float(named == bool(said)), reason=reason)
    odd = sorted(said ^ cited)
    reason = f"affirmed or cited alone: {', '.join(odd)}" if odd else ""
    return Score(value=len(said & cited) / len(said | cited), reason=reason)
