"""Re-weighter `emphasis`: chosen words of an answer weigh more, or nothing."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated

from annotated_types import Ge

from evidcore.api import Reweighter, Span

Weight = Annotated[float, Ge(0)]


class Emphasis(Reweighter):
    """Weigh tokens by the words that they belong to; what a task labels "given" weighs 0.

    A token belongs to a word if any of its characters do.

    Args:
        words: weight of each regular expression's matches; of several, the last one counts.
        other: weight of all other tokens.
    """

    def __init__(self, *, words: Mapping[str, Weight], other: Weight = 1.0) -> None:
        self.words = {re.compile(pattern): weight for pattern, weight in words.items()}
        self.other = other

    def __call__(
        self, text: str, spans: Sequence[Span], offsets: Sequence[tuple[int, int]]
    ) -> Sequence[float]:
        """Return a weight per token; those without characters have the weight of others."""
        places = [(*m.span(), weight) for way, weight in self.words.items() for m in way.finditer(text)]
        places += [(span.start, span.end, 0.0) for span in spans if span.label == "given"]
        places.reverse()  # the last one counts
        return [
            next((weight for first, last, weight in places if start < last and end > first), self.other)
            for start, end in offsets
        ]
