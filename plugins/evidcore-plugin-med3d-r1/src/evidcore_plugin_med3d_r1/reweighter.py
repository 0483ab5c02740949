"""Reweighter `abnormality`: the words of abnormal sentences weigh more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from annotated_types import Ge

from evidcore.case import Span
from evidcore.contracts import Reweighter


class Abnormality(Reweighter):
    """Weigh tokens of sentences labelled "abnormal" by `gain`, all others by 1.

    A token belongs to a sentence if any of its characters do. The loss divides by the sum of the weights, as
    the released code does; the paper's formula has no denominator, which only changes the effective learning
    rate.

    Args:
        gain: weight of abnormal tokens; 1 re-weighs nothing.

    Source:
        Lai et al. 2026, Med3D-R1, arXiv:2602.01200, eq. 5.
    """

    def __init__(self, *, gain: Annotated[float, Ge(0)] = 1.10) -> None:  # paper, section on ARW
        self.gain = gain

    def __call__(
        self, text: str, spans: Sequence[Span], offsets: Sequence[tuple[int, int]]
    ) -> Sequence[float]:
        """Return a weight per token; tokens without characters weigh 1."""
        abnormal = [span for span in spans if span.label == "abnormal"]
        return [
            self.gain if any(start < span.end and end > span.start for span in abnormal) else 1.0
            for start, end in offsets
        ]
