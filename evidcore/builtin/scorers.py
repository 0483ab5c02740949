"""Scorers `findings-f1` and `token-f1`: agreement of two texts that needs no weights."""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import Literal

from evidcore.builtin.kept import Kept
from evidcore.builtin.labelers import NegationRules
from evidcore.case import Finding, Score, State
from evidcore.contracts import Labeler, Scorer, Unread


@dataclasses.dataclass(frozen=True)
class Agreement:
    """Which findings two sources agree on."""

    both: tuple[str, ...]  # affirmed by both
    extra: tuple[str, ...]  # affirmed by the candidate alone
    missed: tuple[str, ...]  # affirmed by the reference alone

    @property
    def f1(self) -> float:
        """Return 2·both / (2·both + extra + missed); 1 where neither affirms anything."""
        wrong = len(self.extra) + len(self.missed)
        return 2 * len(self.both) / (2 * len(self.both) + wrong) if self.both or wrong else 1.0

    def score(self) -> Score:
        """Return F1 as a reward's verdict, with counts and the names that differ."""
        reasons = [
            f"{label}: {', '.join(names)}"
            for label, names in (("both", self.both), ("extra", self.extra), ("missed", self.missed))
            if names
        ]
        parts = {"both": len(self.both), "extra": len(self.extra), "missed": len(self.missed)}
        return Score(value=self.f1, parts=parts, reason="; ".join(reasons) or "neither affirms any finding")


def states(findings: Iterable[Finding]) -> dict[str, State]:
    """Return one state per finding; present wins over uncertain, and uncertain over absent."""
    strength: dict[State, int] = {"absent": 0, "uncertain": 1, "present": 2}
    merged: dict[str, State] = {}
    for item in findings:
        if item.name not in merged or strength[item.state] > strength[merged[item.name]]:
            merged[item.name] = item.state
    return merged


def compare_findings(
    candidate: Iterable[Finding],
    reference: Iterable[Finding],
    *,
    known_only: bool = False,
    spoken_only: bool = False,
) -> Agreement:
    """Compare what two sources affirm.

    What a source does not speak of counts as not affirmed. What the reference is uncertain of is left out.

    Args:
        candidate: findings of the text that is judged.
        reference: findings it is judged against.
        known_only: leave out what the reference does not speak of.
        spoken_only: leave out what the candidate does not speak of.
    """
    ours, theirs = states(candidate), states(reference)
    names = [
        name
        for name in dict.fromkeys([*theirs, *ours])
        if theirs.get(name) != "uncertain"
        and not (known_only and name not in theirs)
        and not (spoken_only and name not in ours)
    ]
    affirmed = {name for name in names if ours.get(name) == "present"}
    true = {name for name in names if theirs.get(name) == "present"}
    return Agreement(
        both=tuple(name for name in names if name in affirmed and name in true),
        extra=tuple(name for name in names if name in affirmed and name not in true),
        missed=tuple(name for name in names if name in true and name not in affirmed),
    )


class FindingsF1(Scorer):
    """F1 of the findings that two texts affirm.

    Args:
        labeler: what reads the texts; `negation-rules` where none is named.
        scope: "all" judges every finding that either text speaks of; "candidate" only those that the
            candidate speaks of (a think text speaks of its four options, a report of everything).
    """

    def __init__(self, *, labeler: Labeler | None = None, scope: Literal["all", "candidate"] = "all") -> None:
        self.labeler = labeler or NegationRules()
        self.scope = scope
        self._kept: Kept[tuple[Finding, ...] | Unread] = Kept(unless=Unread)  # by text

    def __call__(
        self,
        candidates: Sequence[str],
        references: Sequence[str],
        questions: Sequence[str] | None = None,
    ) -> Sequence[float | None]:
        """Return F1 per pair; 0 where the candidate speaks of nothing and the reference of something.

        None where the labeler could not read one of them.
        """
        read = self._kept.of([*candidates, *references], self.labeler.read)
        pairs = zip(read[: len(candidates)], read[len(candidates) :], strict=True)
        return [self._score(*pair) for pair in pairs]

    def _score(self, ours: Sequence[Finding] | Unread, theirs: Sequence[Finding] | Unread) -> float | None:
        if isinstance(ours, Unread) or isinstance(theirs, Unread):
            return None
        if theirs and not ours and self.scope == "candidate":
            return 0.0
        return compare_findings(ours, theirs, spoken_only=self.scope == "candidate").f1


class TokenF1(Scorer):
    """F1 of the words that two texts share, counted with repetition, without case or punctuation."""

    def __call__(
        self,
        candidates: Sequence[str],
        references: Sequence[str],
        questions: Sequence[str] | None = None,
    ) -> Sequence[float | None]:
        """Return F1 per pair; two texts without words are equal."""
        return [self._score(*pair) for pair in zip(candidates, references, strict=True)]

    @staticmethod
    def _score(candidate: str, reference: str) -> float:
        ours, theirs = (
            collections.Counter(re.findall(r"\w+", text.lower())) for text in (candidate, reference)
        )
        total = ours.total() + theirs.total()
        return 2 * (ours & theirs).total() / total if total else 1.0
