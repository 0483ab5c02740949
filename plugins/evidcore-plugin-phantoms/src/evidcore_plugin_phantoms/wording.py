"""Sentences of reports: how a finding is named, and where it stands in the text."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

ABSENT = ("No {name}.", "There is no {name}.", "{Name} is not seen.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sentence:
    """A report sentence and what it says."""

    text: str
    label: str  # "normal" or "abnormal"
    finding: str | None = None  # the finding it names
    offset: int = 0  # where in the sentence the name begins


@dataclasses.dataclass(frozen=True, kw_only=True)
class Written:
    """Sentences as one text: where each lies with its label, and where each finding is first named."""

    text: str
    spans: tuple[tuple[int, int, str], ...]  # start, end, label
    places: dict[str, tuple[int, int]]  # finding -> start, end


def one_of(rng: np.random.Generator, words: Sequence[str]) -> str:
    """Return one of some words, each as likely as the others."""
    return words[int(rng.integers(len(words)))]


def naming(pattern: str, finding: str, label: str, **slots: Any) -> Sentence:
    """Return a pattern's sentence on a finding, its `name`, or `Name` where the sentence begins with it."""
    text = pattern.format(name=finding, Name=finding.capitalize(), **slots)
    return Sentence(text=text, label=label, finding=finding, offset=text.lower().index(finding))


def written(lines: Sequence[Sentence], before: str = "") -> Written:
    """Put sentences into one text, behind another that is not theirs."""
    text, spans = before, []
    places: dict[str, tuple[int, int]] = {}
    for line in lines:
        start = len(text) + 1 if text else 0
        text = f"{text} {line.text}" if text else line.text
        spans.append((start, len(text), line.label))
        if line.finding is not None:
            named = start + line.offset
            places.setdefault(line.finding, (named, named + len(line.finding)))
    return Written(text=text, spans=tuple(spans), places=places)


def on_the(side: str | None) -> str:
    """Return the words for a side, with a space before them; none where there is no side."""
    return f" on the {side}" if side else ""
