"""The words of a text as metrics of word overlap count them."""

from __future__ import annotations

import re

_WORD = re.compile(r"\d+(?:[.,]\d+)+|\w+")


def words(text: str) -> list[str]:
    """Return the words in lower case: letters and digits of any script, "5.5" as one, no punctuation."""
    return _WORD.findall(text.lower())
