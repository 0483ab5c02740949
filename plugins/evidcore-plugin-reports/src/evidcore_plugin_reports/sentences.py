"""Sentences of a text, which of them are abnormal, and its words as metrics of word overlap count them."""

import bisect
import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from evidcore.api import Labeler, Span, Unscored
from evidcore.contracts import Measured, TextSample, Totals

NO_REFERENCE = Unscored(kind="not-applicable", reason="no reference report")
_WORD = re.compile(r"\d+(?:[.,]\d+)+|\w+")


def words(text: str) -> list[str]:
    """Return the words in lower case: letters and digits of any script, "5.5" as one, no punctuation."""
    return _WORD.findall(text.lower())


def reference_of(text: TextSample) -> str | None:
    """Return the reference, None where there is none or it holds no word."""
    said = text.reference.text if text.reference is not None else ""
    return said if words(said) else None


def measured(
    texts: Sequence[TextSample], figures: Callable[[str, str], Mapping[str, float | Totals]]
) -> list[Measured | Unscored]:
    """Measure each text against its reference, as `figures(text, reference)`; none where there is none."""
    references = [reference_of(text) for text in texts]
    return [
        NO_REFERENCE if said is None else Measured(figures=figures(text.text, said))
        for text, said in zip(texts, references, strict=True)
    ]


# a full stop ends a sentence unless it stands between digits ("5.5 mm")
_SENTENCE = re.compile(r"(?:[^.!?\n]|(?<=\d)\.(?=\d))+[.!?]?")


@dataclasses.dataclass(frozen=True)
class Stretch:
    """Characters of a text, end excluded."""

    start: int
    end: int


def sentences(text: str) -> Iterator[Stretch]:
    """Yield where the sentences of `text` lie, without white space around them."""
    for match in _SENTENCE.finditer(text):
        said = match.group()
        start = match.start() + len(said) - len(said.lstrip())
        end = match.end() - len(said) + len(said.rstrip())
        if start < end:
            yield Stretch(start, end)


def labelled(text: str, labeler: Labeler) -> Iterator[Span]:
    """Yield each sentence of a text as normal, abnormal or, where nothing is found in it, other.

    A sentence in which anything is present or uncertain is abnormal; one whose findings are all absent is
    normal.
    """
    stretches = [*sentences(text)]
    states: list[set[str]] = [set() for _ in stretches]
    for item in labeler(text):
        if item.span is not None:
            first = bisect.bisect_right(stretches, item.span.start, key=lambda stretch: stretch.end)
            last = bisect.bisect_left(stretches, item.span.end, key=lambda stretch: stretch.start)
            for stated in states[first:last]:
                stated.add(item.state)
    for stretch, stated in zip(stretches, states, strict=True):
        label = "other" if not stated else "normal" if stated == {"absent"} else "abnormal"
        yield Span(start=stretch.start, end=stretch.end, label=label)
