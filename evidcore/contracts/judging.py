"""What answers and texts are judged by, and what written texts are measured by."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import numpy as np
from jaxtyping import Float

from evidcore.case import Case, Crop, Finding, Report, Rollout, Score, Turn, Unscored, Verdict
from evidcore.errors import DataError

TextKind = Literal["report", "think", "turns"]
Judged = Literal["format", "correctness", "report", "evidence"]
Outcome = Literal["fine", "note", "alarm", "not applicable"]


@dataclasses.dataclass(frozen=True)
class Totals:
    """Numbers of one text that add up over texts, and how a figure is made of their sums.

    | pooling | numbers | figure |
    |---|---|---|
    | `ratio` | a, b | a / b |
    | `mean_ratio` | a1, b1, a2, b2, … | mean of the a / b whose b is above 0 |
    | `difference` | a, b, c, d | a / b - c / d |
    | a metric's name | whatever it counts | that metric's `pool` |
    """

    pooling: str
    numbers: tuple[float, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextSample:
    """A text that a model wrote about a case, and what it is held against."""

    case: Case
    asked: str  # the prompt as text
    text: str  # empty where the answer held none
    reference: Report | None  # with labelled sentences where they are known
    turns: tuple[Turn, ...] = ()  # before it, to which tools replied; of texts that are read as "turns"
    shown: tuple[Crop, ...] = ()  # by the prompt; of these too


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """The figures of one text.

    A number is the text's own value and is averaged over texts; `Totals` are pooled. A figure that one text
    lacks and others have is missing, not 0. A name that ends in "/…" is a detail, folded away in tables.
    """

    figures: Mapping[str, float | Totals]
    remarks: Mapping[str, str] = dataclasses.field(default_factory=dict)  # kept beside the answer


class Component:
    """What components have in common that a run asks, and an audit of a reward."""

    audit_exemption: str = ""  # why it is not asked for an audit: "a 7B model reads every text"

    def ready(self) -> None:
        """Raise if anything is missing that it will need; asked before anything is trained.

        A reader that a `fit` stage trains is asked where no stage above its use does.

        Raises:
            EvidError: names what is missing, and what to type.
        """


class Metric(Component, ABC):
    """Measure texts against what is known of their cases; more is better.

    Core gives: `recipe_folder` (relative paths start there), `labeler` (the evaluate stage's).
    """

    from evidcore.contracts.judging import Measured as Measured
    from evidcore.contracts.judging import TextSample as TextSample

    unit: ClassVar[Literal["rate", "score", "plain"]] = "score"  # written 41.2 %, 0.412, or as it is
    reads: ClassVar[frozenset[TextKind]] = frozenset({"report"})  # "think", "turns": before a choice

    @abstractmethod
    def __call__(self, texts: Sequence[TextSample]) -> Sequence[Measured | Unscored]:
        """Return the figures of each text, in whatever order all texts of a set are given.

        Missing is not zero: a text that cannot be measured is Unscored and says why. An empty text that
        stands for a whole report is measured, and earns nothing.
        """

    @staticmethod
    def pool(sums: Float[np.ndarray[Any, Any], "row number"]) -> Float[np.ndarray[Any, Any], " row"]:
        """Return the figure of each row of sums; only for `Totals` that name this metric as their pooling.

        Lines of answers hold such sums, and are pooled again for each resample of patients, also where
        runs are compared later: the metric is found by its name, and `pool` is called on the class.
        """
        raise NotImplementedError

    def notes(self) -> Mapping[str, str]:
        """Return what a table must say beside figures, by name."""
        return {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checked:
    """What one check of a reward found."""

    check: str
    outcome: Outcome
    says: str  # a sentence with its figures
    task: str = ""
    reward: str = ""  # by itself; empty: all of the stage, composed
    figures: Mapping[str, float] = dataclasses.field(default_factory=dict)


class Reward(Component, ABC):
    """Judge sampled answers; higher is better.

    Core gives: `policy` (a `Policy`, the model being trained), `start_policy` (the same as the stage began
    with it, loaded when it is first asked), `cases` (a function that lists the cases trained on).
    `earlier` holds the verdicts of the rewards before this one in the recipe, by name.
    """

    bounds: tuple[float, float] = (0.0, 1.0)  # of its values, as its options have them
    requires: Sequence[str] = ()  # names of rewards that must stand above it

    # what `evid audit reward` may hold it to
    judges: frozenset[Judged] | None = None  # None: not said; empty: a control that judges nothing
    declared: Mapping[str, str] = MappingProxyType({})  # check -> why its source's reward fails it
    detects_negation: bool = True  # as its scorer's, where that judges
    compares_group: bool = False  # a verdict may depend on the other answers of the group

    @abstractmethod
    def __call__(
        self, rollouts: Sequence[Rollout], earlier: Mapping[str, Sequence[Verdict]]
    ) -> Sequence[Score | Unscored | None]:
        """Return a verdict per rollout; rollouts come as whole groups.

        None is short for "not applicable". Missing is not zero: an unscored rollout moves no advantage.
        """

    def checks(self, gold: Sequence[Rollout]) -> Sequence[Checked]:
        """Return what `evid audit reward` tells of this reward alone, beyond what it asks of every one.

        Args:
            gold: the gold answer to each audited prompt of a task, in groups of their own.
        """
        return ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageQuestion:
    """A question about what crops show. No report is told, nor which case they come from."""

    crops: tuple[Crop, ...]
    text: str


class Reader(Component, ABC):
    """Answer questions about images without seeing a report: a judge, or any model to be audited.

    Core gives: `recipe_folder` (relative paths start there), `policy` and `start_policy` as to a reward.
    """

    from evidcore.contracts.judging import ImageQuestion as ImageQuestion

    deterministic: ClassVar[bool]

    @abstractmethod
    def __call__(self, questions: Sequence[ImageQuestion]) -> Sequence[str | None]:
        """Return an answer per question, None where there is none.

        Questions come many at once, those of all rollouts of a step; each is answered as if it were alone.
        """


class LabelError(DataError):
    """A text whose findings a labeler could not tell. Says why, and never quotes the text."""


class Labeler(Component, ABC):
    """Find findings in text.

    Core gives: `recipe_folder` (relative paths start there); `vocabulary`, a function that returns the names
    of the findings of the recipe's data sets, to be called while a text is read.
    """

    from evidcore.contracts.judging import LabelError as LabelError

    def label_names(self) -> tuple[str, ...]:
        """Return the names of the findings that it looks for; none where it does not tell."""
        return ()

    @abstractmethod
    def __call__(self, text: str) -> tuple[Finding, ...]:
        """Return the findings that `text` speaks of; each span lies inside the text.

        Raises:
            LabelError: if this text could not be read. "Nothing found" is an empty tuple, and another thing.
        """

    def read(self, texts: Sequence[str]) -> Sequence[tuple[Finding, ...] | LabelError]:
        """Return the findings of each text, or why it could not be read.

        One that waits for others to answer may read them all at once.
        """
        result: list[tuple[Finding, ...] | LabelError] = []
        for text in texts:
            try:
                result.append(self(text))
            except LabelError as reason:
                result.append(reason)
        return result

    def read_once(self, texts: Iterable[str]) -> dict[str, tuple[Finding, ...] | LabelError]:
        """Return by text its findings, or why it could not be read; equal ones are read once."""
        each = list(dict.fromkeys(texts))
        return dict(zip(each, self.read(each), strict=True))


class Scorer(Component, ABC):
    """Compare texts. Core gives: `recipe_folder` (relative paths start there)."""

    detects_negation: ClassVar[bool] = True  # hears that a text denies what the other affirms
    is_exact: ClassVar[bool] = True  # equal texts score 1; a judge that was learned need not know them

    @abstractmethod
    def __call__(
        self, candidates: Sequence[str], references: Sequence[str], questions: Sequence[str] | None = None
    ) -> Sequence[float | None]:
        """Return an agreement in 0..1 per pair, None where nothing can be compared.

        Args:
            candidates: texts that are judged.
            references: what each is judged against.
            questions: what each candidate answers, None where nothing was asked. Few scorers look at it.
        """
