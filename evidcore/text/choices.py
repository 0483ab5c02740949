"""Letters of a multiple-choice question's options, and the question that is asked about findings."""

from __future__ import annotations

LETTERS = "ABCDEFGH"
STEM = "Which finding is present?"
