"""Labelers `phrases` and `negation-rules`: findings in English text, with state, side, size and place."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence

from evidcore.case import Finding, Side, Span, State
from evidcore.contracts import Labeler
from evidcore.text import chest_words, scope_words
from evidcore.text.findings import CT_RATE_FINDINGS
from evidcore.text.sentences import Stretch, sentences

_PLAIN_DENIAL = re.compile(r"\b(?:no|not|without|absent|none|never)\b", re.IGNORECASE)
_SIDE = re.compile(r"\b(left|right|both|bilateral(?:ly)?)\b", re.IGNORECASE)
_SIZE = re.compile(r"(\d+(?:[.,]\d+)?)(?:\s*[x\u00d7]\s*\d+(?:[.,]\d+)?)*\s*(mm|cm)\b", re.IGNORECASE)


class Phrases(Labeler):
    """Find findings by their exact names; a cue anywhere in the sentence decides whether it is denied.

    Right for phantom reports and for verdicts on options ("B lung nodule present."), where each sentence
    speaks of findings in one way; `negation-rules` is for radiologists' sentences.

    Args:
        findings: the names to look for.
    """

    def __init__(self, *, findings: tuple[str, ...] = CT_RATE_FINDINGS) -> None:
        self.findings = findings

    def __call__(self, text: str) -> tuple[Finding, ...]:
        """Return every mention, in the order of the text."""
        found = []
        for said, offset, mentions in _sentences_that_mention(text, _names(self.findings)):
            state: State = "present"
            if _either(scope_words.DOUBTS_AFTER + scope_words.DOUBTS_BEFORE).search(said):
                state = "uncertain"
            elif _PLAIN_DENIAL.search(said):
                state = "absent"
            found += [_finding(name, state, said, mention, offset) for name, mention in mentions]
        return tuple(found)


class NegationRules(Labeler):
    """Find findings in radiologists' English, each with the reach of "no", "cannot be excluded" and the like.

    Within a sentence, a denial or doubt before a mention reaches forward to it and one behind reaches back,
    unless a word such as "but" or another statement stands between. Where both reach, doubt wins over denial.
    A mention that only tells history ("history of …") says nothing of this scan and is left out.

    Args:
        findings: the names to look for; one that is not among the 18 of CT-RATE is looked for literally.
    """

    def __init__(self, *, findings: tuple[str, ...] = CT_RATE_FINDINGS) -> None:
        self.findings = findings

    def __call__(self, text: str) -> tuple[Finding, ...]:
        """Return every mention, in the order of the text."""
        found = []
        for said, offset, mentions in _sentences_that_mention(text, _lexicon(self.findings)):
            for name, mention in mentions:
                state = None if _is_elsewhere(name, said) else _state(said, mention)
                if state is not None:
                    found.append(_finding(name, state, said, mention, offset))
        return tuple(found)


def _sentences_that_mention(
    text: str, lexicon: Mapping[str, re.Pattern[str]]
) -> Iterator[tuple[str, int, list[tuple[str, Stretch]]]]:
    """Yield each sentence that names findings, where it starts, and where in it they are named.

    Of overlapping mentions the longest is meant. Patterns run over the whole text, which is much faster than
    over each sentence; none of them can match a full stop, so no mention reaches into the next sentence.
    """
    every = [(name, _mention(match)) for name, pattern in lexicon.items() for match in pattern.finditer(text)]
    every.sort(key=lambda item: (item[1].start - item[1].end, item[1].start))
    kept: list[tuple[str, Stretch]] = []
    for name, stretch in every:
        if all(stretch.end <= other.start or other.end <= stretch.start for _, other in kept):
            kept.append((name, stretch))
    kept.sort(key=lambda item: item[1].start)
    for sentence in sentences(text):
        inside = [
            (name, Stretch(stretch.start - sentence.start, stretch.end - sentence.start))
            for name, stretch in kept
            if sentence.start <= stretch.start and stretch.end <= sentence.end
        ]
        if inside:
            yield text[sentence.start : sentence.end], sentence.start, inside


def _mention(match: re.Match[str]) -> Stretch:
    """Return what of a match names the finding: the group `at_…` that took part, else all of it."""
    if match.lastgroup is None:
        return Stretch(*match.span())
    return Stretch(*match.span(match.lastgroup))


def _is_elsewhere(name: str, said: str) -> bool:
    """Tell whether a sentence speaks of another organ than the finding's."""
    others = chest_words.ELSEWHERE.get(name)
    return (
        others is not None
        and _either(others).search(said) is not None
        and _either(chest_words.LUNGS).search(said) is None
    )


def _state(said: str, mention: Stretch) -> State | None:
    """Return what a sentence says of a mention, None where it only tells history."""
    aside = _either(scope_words.ASIDE)
    before = _cut_before(said[: mention.start])
    after = _cut_after(aside.sub(" ", said[mention.end :]))
    if _either(scope_words.TELLS_HISTORY).search(_either(scope_words.COMPARES).sub(" ", before)):
        return None
    before = _either(scope_words.DENIES_NOTHING).sub(" ", before)
    after = _either(scope_words.DENIES_NOTHING).sub(" ", after)
    if _either(scope_words.DOUBTS_AFTER).search(before) or _either(scope_words.DOUBTS_BEFORE).search(after):
        return "uncertain"
    inside = said[mention.start : mention.end]  # "lymph nodes were not enlarged"
    if _either(scope_words.DENIES_AFTER).search(f"{before} {inside}") or _either(
        scope_words.DENIES_BEFORE
    ).search(after):
        return "absent"
    return "present"


def _cut_before(text: str) -> str:
    """Return what of the words before a mention still reaches it."""
    ends = list(_either(scope_words.ENDS_SCOPE).finditer(text))
    return text[ends[-1].end() :] if ends else text


def _cut_after(text: str) -> str:
    """Return what of the words behind a mention still speaks of it."""
    end = _either(scope_words.ENDS_SCOPE).search(text)
    return text[: end.start()] if end else text


def _finding(name: str, state: State, said: str, mention: Stretch, offset: int) -> Finding:
    return Finding(
        name=name,
        state=state,
        side=_side(said, mention),
        size_mm=_size_mm(said, mention) if state != "absent" else None,
        span=Span(start=offset + mention.start, end=offset + mention.end, label=state),
    )


def _side(said: str, mention: Stretch) -> Side | None:
    """Return the side said nearest to a mention, in its own clause."""
    start = max((m.end() for m in re.finditer(r"[,;]", said[: mention.start])), default=0)
    stop = re.search(r"[,;]", said[mention.end :])
    clause = said[start : mention.end + stop.start() if stop else len(said)]
    found = [match.group(1).lower() for match in _SIDE.finditer(clause)]
    if not found:
        return None
    if any(side.startswith(("both", "bilateral")) for side in found) or {"left", "right"} <= set(found):
        return "both"
    return "left" if found[0] == "left" else "right"


def _size_mm(said: str, mention: Stretch) -> float | None:
    """Return the size said nearest to a mention, the larger axis where two are given."""
    sizes = sorted(
        _SIZE.finditer(said),
        key=lambda m: max(mention.start - m.end(), m.start() - mention.end, 0),
    )
    if not sizes:
        return None
    numbers = [float(n.replace(",", ".")) for n in re.findall(r"\d+(?:[.,]\d+)?", sizes[0].group())]
    return max(numbers) * (10.0 if sizes[0].group(2).lower() == "cm" else 1.0)


@functools.cache
def _either(cues: Sequence[str]) -> re.Pattern[str]:
    # cues of letters only match whole words; punctuation cues match as they are
    inner = "|".join(cue if cue[0] in ",;:\\" else rf"(?<![\w-])(?:{cue})(?![\w-])" for cue in cues)
    return re.compile(inner, re.IGNORECASE)


@functools.cache
def _names(findings: tuple[str, ...]) -> Mapping[str, re.Pattern[str]]:
    return {name: re.compile(rf"\b{re.escape(name)}(?:s|es)?\b", re.IGNORECASE) for name in findings}


@functools.cache
def _lexicon(findings: tuple[str, ...]) -> Mapping[str, re.Pattern[str]]:
    return {name: _pattern([re.escape(name), *chest_words.CHEST_WORDS.get(name, ())]) for name in findings}


def _pattern(ways: Sequence[str]) -> re.Pattern[str]:
    # a group may be named once: `at` becomes `at_0`, `at_1`, ...
    named = [way.replace("(?P<at>", f"(?P<at_{number}>") for number, way in enumerate(ways)]
    return re.compile(rf"\b(?:{'|'.join(named)})\b", re.IGNORECASE)
