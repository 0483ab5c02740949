"""What answers and texts are judged by."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from evidcore.case import Crop, Finding, Rollout, Score, Unscored, Verdict
from evidcore.errors import DataError


class Reward(ABC):
    """Judge sampled answers; higher is better. Core gives: `policy` (a `Policy`, the model being trained).

    `earlier` holds the verdicts of the rewards before this one in the recipe, by name.
    """

    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def ready(self) -> None:
        """Raise if anything is missing that judging will need; asked before anything is trained.

        Raises:
            EvidError: names what is missing, and what to type.
        """
        return

    @abstractmethod
    def __call__(
        self, rollouts: Sequence[Rollout], earlier: Mapping[str, Sequence[Verdict]]
    ) -> Sequence[Score | Unscored | None]:
        """Return a verdict per rollout; rollouts come as whole groups.

        None is short for "not applicable". Missing is not zero: an unscored rollout moves no advantage.
        """


class Reader(ABC):
    """Read images without seeing the report: a judge, or any model to be audited. Core gives: nothing."""

    deterministic: ClassVar[bool]

    @abstractmethod
    def __call__(self, crops: Sequence[Crop], question: str) -> str | None:
        """Return an answer, None if there is none."""


class Unread(DataError):
    """A text whose findings a labeler could not tell. Says why, and never quotes the text."""


class Labeler(ABC):
    """Find findings in text. Core gives: `recipe_folder` (relative paths start there)."""

    @abstractmethod
    def __call__(self, text: str) -> tuple[Finding, ...]:
        """Return the findings that `text` speaks of; each span lies inside the text.

        Raises:
            Unread: if this text could not be read. "Nothing found" is an empty tuple, and another thing.
        """

    def read(self, texts: Sequence[str]) -> Sequence[tuple[Finding, ...] | Unread]:
        """Return the findings of each text, or why it could not be read.

        One that waits for others to answer may read them all at once.
        """
        return [self._or_unread(text) for text in texts]

    def _or_unread(self, text: str) -> tuple[Finding, ...] | Unread:
        try:
            return self(text)
        except Unread as reason:
            return reason


class Scorer(ABC):
    """Compare texts. Core gives: `recipe_folder` (relative paths start there)."""

    is_exact: ClassVar[bool] = True  # equal texts score 1; a judge that was learned need not know them

    def ready(self) -> None:
        """Raise if anything is missing that scoring will need; asked before anything is trained.

        Raises:
            EvidError: names what is missing, and what to type.
        """
        return

    @abstractmethod
    def __call__(
        self,
        candidates: Sequence[str],
        references: Sequence[str],
        questions: Sequence[str] | None = None,
    ) -> Sequence[float | None]:
        """Return an agreement in 0..1 per pair, None where nothing can be compared.

        Args:
            candidates: texts that are judged.
            references: what each is judged against.
            questions: what each candidate answers, None where nothing was asked. Few scorers look at it.
        """
