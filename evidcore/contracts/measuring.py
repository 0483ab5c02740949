"""What written texts are measured by, once a model is trained."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from jaxtyping import Float

from evidcore.case import Case, Report, Unscored

TextKind = Literal["report", "think"]


@dataclasses.dataclass(frozen=True)
class Sums:
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
class Written:
    """A text that a model wrote about a case, and what it is held against."""

    case: Case
    asked: str  # the prompt as text
    text: str  # empty where the answer held none
    reference: Report | None  # with labelled sentences where they are known


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """The figures of one text.

    A number is the text's own value and is averaged over texts; `Sums` are pooled. A figure that one text
    lacks and others have is missing, not 0. A name that ends in "/…" is a detail, folded away in tables.
    """

    figures: Mapping[str, float | Sums]
    remarks: Mapping[str, str] = dataclasses.field(default_factory=dict)  # kept beside the answer


class Metric(ABC):
    """Measure texts against what is known of their cases; more is better.

    Core gives: `recipe_folder` (relative paths start there), `labeler` (the evaluate stage's).
    """

    unit: ClassVar[Literal["rate", "score", "plain"]] = "score"  # written 41.2 %, 0.412, or as it is
    reads: ClassVar[frozenset[TextKind]] = frozenset({"report"})  # "think": what was thought before a choice

    def ready(self) -> None:
        """Raise if anything is missing that measuring will need; asked before anything is trained.

        Raises:
            EvidError: names what is missing, and what to type.
        """
        return

    @abstractmethod
    def __call__(self, texts: Sequence[Written]) -> Sequence[Measured | Unscored]:
        """Return the figures of each text, in whatever order all texts of a set are given.

        Missing is not zero: a text that cannot be measured is Unscored and says why. An empty text that
        stands for a whole report is measured, and earns nothing.
        """

    @staticmethod
    def pool(
        sums: Float[np.ndarray[Any, Any], "row number"],
    ) -> Float[np.ndarray[Any, Any], " row"]:
        """Return the figure of each row of sums; only for `Sums` that name this metric as their pooling.

        Lines of answers hold such sums, and are pooled again for each resample of patients, also where
        runs are compared later: the metric is found by its name, and `pool` is called on the class.
        """
        raise NotImplementedError

    def notes(self) -> Mapping[str, str]:
        """Return what a table must say beside figures, by name."""
        return {}
