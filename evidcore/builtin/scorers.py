"""Scorer `token-f1`: the words that two texts share."""

import re
from collections import Counter
from collections.abc import Sequence

from evidcore.contracts import Scorer


class TokenF1(Scorer):
    """F1 of the words that two texts share, counted with repetition, without case or punctuation."""

    def __call__(
        self, candidates: Sequence[str], references: Sequence[str], questions: Sequence[str] | None = None
    ) -> Sequence[float | None]:
        """Return F1 per pair; two texts without words are equal."""
        return [self._score(*pair) for pair in zip(candidates, references, strict=True)]

    @staticmethod
    def _score(candidate: str, reference: str) -> float:
        ours, theirs = (Counter(re.findall(r"\w+", text.lower())) for text in (candidate, reference))
        total = ours.total() + theirs.total()
        return 2 * (ours & theirs).total() / total if total else 1.0
