"""Reweighter `abnormality`: the words of abnormal sentences weigh more."""

from collections.abc import Sequence
from typing import Annotated

from annotated_types import Ge
from evidcore_plugin_reports.sentences import labelled

from evidcore.api import Labeler, Reweighter, Span


class Abnormality(Reweighter):
    """Weigh tokens of sentences labelled "abnormal" by `gain`, all others by 1.

    A token belongs to a sentence if any of its characters do. The loss divides by the sum of the weights, as
    the released code does; the paper's formula has no denominator, which only changes the effective learning
    rate.

    Args:
        gain: weight of abnormal tokens, 1.1 in the paper's section on ARW; 1 re-weighs nothing.
        labeler: tells abnormal sentences; without one, the labels that came with the data are taken, and a
            text that came without weighs 1 throughout.

    Source:
        Lai et al. 2026, Med3D-R1, arXiv:2602.01200, eq. 5.
    """

    def __init__(self, *, gain: Annotated[float, Ge(0)] = 1.10, labeler: Labeler | None = None) -> None:
        self.gain = gain
        self.labeler = labeler
        self._labelled: dict[str, tuple[Span, ...]] = {}  # a text comes back in every epoch

    def __call__(
        self, text: str, spans: Sequence[Span], offsets: Sequence[tuple[int, int]]
    ) -> Sequence[float]:
        """Return a weight per token; tokens without characters weigh 1."""
        abnormal = [span for span in self._spans(text, spans) if span.label == "abnormal"]
        return [
            self.gain if any(start < span.end and end > span.start for span in abnormal) else 1.0
            for start, end in offsets
        ]

    def _spans(self, text: str, given: Sequence[Span]) -> Sequence[Span]:
        if self.labeler is None:
            return given
        if text not in self._labelled:
            self._labelled[text] = tuple(labelled(text, self.labeler))
        return self._labelled[text]
