"""Re-weighter `emphasis`: chosen words of an answer weigh more, or nothing."""

from collections.abc import Mapping, Sequence
from typing import Annotated

import regex
from annotated_types import Ge

from evidcore.api import Reweighter, Span
from evidcore.errors import RecipeError

Weight = Annotated[float, Ge(0)]
MATCHING_S = 1.0  # on one answer; a repeat within a repeat can take years


class Emphasis(Reweighter):
    """Weigh tokens by the words that they belong to; what a task labels "given" weighs 0.

    A token belongs to a word if any of its characters do.

    Args:
        words: weight of each regular expression's matches; of several, the last one counts.
        other: weight of all other tokens.
    """

    def __init__(self, *, words: Mapping[str, Weight], other: Weight = 1.0) -> None:
        self.words = {regex.compile(pattern): weight for pattern, weight in words.items()}
        self.other = other

    def __call__(
        self, text: str, spans: Sequence[Span], offsets: Sequence[tuple[int, int]]
    ) -> Sequence[float]:
        """Return a weight per token; those without characters have the weight of others.

        Raises:
            RecipeError: if the words are not found within a second.
        """
        try:
            found = [(way.finditer(text, timeout=MATCHING_S), weight) for way, weight in self.words.items()]
            places = [(*match.span(), weight) for matches, weight in found for match in matches]
        except TimeoutError as cause:
            text = f"finding words takes over {MATCHING_S:g} s on one answer. Write no repeat within a repeat"
            raise RecipeError(f"reweighter emphasis: {text}, as in (a+)+.") from cause
        places += [(span.start, span.end, 0.0) for span in spans if span.label == "given"]
        places.reverse()  # the last one counts
        return [
            next((weight for first, last, weight in places if start < last and end > first), self.other)
            for start, end in offsets
        ]
