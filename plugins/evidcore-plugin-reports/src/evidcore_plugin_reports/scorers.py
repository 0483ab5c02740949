"""Scorer `findings-f1`: agreement of two texts on findings."""

from collections.abc import Sequence
from typing import Literal

from evidcore.api import Finding, Labeler, Scorer
from evidcore.contracts import LabelError
from evidcore_plugin_reports.agreement import compare_findings, is_read
from evidcore_plugin_reports.labelers import NegationRules, Vocabulary
from evidcore_plugin_reports.text_cache import TextCache


class FindingsF1(Scorer):
    """F1 of the findings that two texts affirm.

    Args:
        labeler: what reads the texts; where none is named, `negation-rules` for the data sets' findings.
        scope: "all" judges every finding that either text speaks of; "candidate" only those that the
            candidate speaks of (a think text speaks of its four options, a report of everything).
    """

    def __init__(
        self,
        vocabulary: Vocabulary = tuple,
        *,
        labeler: Labeler | None = None,
        scope: Literal["all", "candidate"] = "all",
    ) -> None:
        self.labeler = labeler or NegationRules(vocabulary)
        self.audit_exemption = self.labeler.audit_exemption
        self.scope = scope
        self._cache: TextCache[tuple[Finding, ...] | LabelError] = TextCache(unless=LabelError)  # by text

    def __call__(
        self, candidates: Sequence[str], references: Sequence[str], questions: Sequence[str] | None = None
    ) -> Sequence[float | None]:
        """Return F1 per pair; 0 where nothing of the candidate was read, and of the reference something.

        None where the labeler could not read one of them, or nothing of the reference was read.
        """
        read = self._cache.get([*candidates, *references], self.labeler.read)
        texts = zip(candidates, references, strict=True)
        pairs = zip(read[: len(candidates)], read[len(candidates) :], strict=True)
        return [self._score(*words, *pair) for words, pair in zip(texts, pairs, strict=True)]

    def _score(
        self,
        candidate: str,
        reference: str,
        ours: Sequence[Finding] | LabelError,
        theirs: Sequence[Finding] | LabelError,
    ) -> float | None:
        if isinstance(ours, LabelError) or isinstance(theirs, LabelError) or not is_read(reference, theirs):
            return None
        if not is_read(candidate, ours) or (theirs and not ours and self.scope == "candidate"):
            return 0.0
        return compare_findings(ours, theirs, spoken_only=self.scope == "candidate").f1
