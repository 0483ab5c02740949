"""A cache of values computed for texts."""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

Value = TypeVar("Value")


class TextCache(Generic[Value]):
    """Values by text; holds the latest `most`, as a group's answers share a report and cases come again.

    Args:
        most: how many.
        unless: values of this type are computed anew each time.
    """

    def __init__(self, most: int = 8192, *, unless: type | None = None) -> None:
        self.most, self.unless = most, unless
        self._held: dict[str, Value] = {}  # the latest last

    def get(self, texts: Sequence[str], compute: Callable[[list[str]], Sequence[Value]]) -> list[Value]:
        """Return a value for each text; those not held are computed in one call."""
        result = {text: self._held.pop(text) for text in dict.fromkeys(texts) if text in self._held}
        unknown = [text for text in dict.fromkeys(texts) if text not in result]
        if unknown:
            result.update(zip(unknown, compute(unknown), strict=True))
        for text, value in result.items():
            if self.unless is None or not isinstance(value, self.unless):
                self._held[text] = value
        for text in list(self._held)[: max(0, len(self._held) - self.most)]:
            del self._held[text]
        return [result[text] for text in texts]
