"""The words of a text as metrics of word overlap count them, and the reference a text is measured against."""

from __future__ import annotations

import re

from evidcore.case import Unscored
from evidcore.contracts import Written

NO_REFERENCE = Unscored(kind="not-applicable", reason="no reference report")
_WORD = re.compile(r"\d+(?:[.,]\d+)+|\w+")


def words(text: str) -> list[str]:
    """Return the words in lower case: letters and digits of any script, "5.5" as one, no punctuation."""
    return _WORD.findall(text.lower())


def reference_of(text: Written) -> str | None:
    """Return the reference, None where there is none or it holds no word."""
    said = text.reference.text if text.reference is not None else ""
    return said if words(said) else None
