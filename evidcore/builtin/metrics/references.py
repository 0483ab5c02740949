"""The reference that a text is measured against."""

from __future__ import annotations

from evidcore.builtin.metrics.words import words
from evidcore.case import Unscored
from evidcore.contracts import Written

NO_REFERENCE = Unscored(kind="not-applicable", reason="no reference report")


def reference_of(text: Written) -> str | None:
    """Return the reference, None where there is none or it holds no word."""
    said = text.reference.text if text.reference is not None else ""
    return said if words(said) else None
