"""Reweighter `uniform`: every target token weighs the same."""

from collections.abc import Sequence

from evidcore.case import Span
from evidcore.contracts import Reweighter


class Uniform(Reweighter):
    """Weigh every token 1; equals no re-weighter, bit for bit."""

    def __call__(
        self, text: str, spans: Sequence[Span], offsets: Sequence[tuple[int, int]]
    ) -> Sequence[float]:
        return [1.0] * len(offsets)
