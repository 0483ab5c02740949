"""Reward `consistent-evidence`: is a slice cited where the report affirms a finding, and only there?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from evidcore.builtin.labelers import NegationRules, Vocabulary
from evidcore.case import Evidence, Rollout, Score, Unscored, Verdict
from evidcore.contracts import Labeler, Reward, Unread
from evidcore.text.agreement import affirmed


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
        self.costs = self.labeler.costs

    def __call__(
        self, rollouts: Sequence[Rollout], earlier: Mapping[str, Sequence[Verdict]]
    ) -> Sequence[Score | Unscored | None]:
        """Judge each answer by itself; equal reports are read once."""
        texts = list(dict.fromkeys(one.answer.report or "" for one in rollouts))
        read = dict(zip(texts, self.labeler.read(texts), strict=True))
        verdicts: list[Score | Unscored | None] = []
        for rollout in rollouts:
            answer, findings = rollout.answer, read[rollout.answer.report or ""]
            if not {"shown", "targets"} <= rollout.prompt.reference.keys():
                verdicts.append(None)
            elif answer.malformed is not None or answer.evidence is None:
                verdicts.append(Score(value=0.0, reason=answer.malformed or "no evidence"))
            elif isinstance(findings, Unread):
                verdicts.append(Unscored(kind="failed", reason=str(findings)))
            else:
                verdicts.append(_compare(answer.evidence, {*affirmed(findings)}))
        return verdicts


def _compare(evidence: Evidence, said: Set[str]) -> Score:
    cited = evidence.slices.keys()
    if not cited:
        named = evidence.slice is not None
        what = ", ".join(sorted(said)) or "nothing"
        reason = f"affirmed is {what}, cited is {'a slice' if named else 'none'}"
        return Score(value=float(named == bool(said)), reason=reason)
    odd = sorted(said ^ cited)
    reason = f"affirmed or cited alone: {', '.join(odd)}" if odd else ""
    return Score(value=len(said & cited) / len(said | cited), reason=reason)
