"""Sentences of reports: how a finding is named, and where it stands in the text."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from evidcore.api import Report, Span

ABSENT = ("No {name}.", "There is no {name}.", "{Name} is not seen.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sentence:
    """A report sentence and what it says."""

    text: str
    label: str  # "normal" or "abnormal"
    finding: str | None = None  # the finding it names
    offset: int = 0  # where in the sentence the name begins


def one_of(rng: np.random.Generator, words: Sequence[str]) -> str:
    """Return one of some words, each as likely as the others."""
    return words[int(rng.integers(len(words)))]


def naming(pattern: str, finding: str, label: str, **slots: Any) -> Sentence:
    """Return a pattern's sentence on a finding, its `name`, or `Name` where the sentence begins with it."""
    text = pattern.format(name=finding, Name=finding.capitalize(), **slots)
    return Sentence(text=text, label=label, finding=finding, offset=text.lower().index(finding))


def written(lines: Sequence[Sentence]) -> tuple[Report, dict[str, Span]]:
    """Put sentences into one text; return it with a span for each, and where each finding is first named."""
    text, spans = "", []
    names: dict[str, Span] = {}
    for line in lines:
        start = len(text) + 1 if text else 0
        text = f"{text} {line.text}" if text else line.text
        spans.append(Span(start=start, end=len(text), label=line.label))
        if line.finding is not None:
            named = start + line.offset
            names.setdefault(line.finding, Span(start=named, end=named + len(line.finding), label=line.label))
    return Report(text=text, spans=tuple(spans)), names


def on_the(side: str | None) -> str:
    """Return the words for a side, with a space before them; none where there is no side."""
    return f" on the {side}" if side else ""
