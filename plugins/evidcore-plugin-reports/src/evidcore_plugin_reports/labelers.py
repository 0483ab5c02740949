"""Labelers `phrases` and `negation-rules`: findings in English text, with state and details.

The rules are in english_rules.toml. What stands between a word that denies, doubts or dates and a mention
decides about it.
"""

import bisect
import functools
import re
from collections.abc import Callable, Iterator, Mapping

from evidcore.api import Finding, Labeler, Span
from evidcore.case import Side, State
from evidcore_plugin_reports.findings import CT_RATE_FINDINGS, RULES
from evidcore_plugin_reports.sentences import Stretch, sentences

_NATURE, _PLAIN_DENIAL, _SIDE, _SIZE = (
    re.compile(RULES["said"][name], re.IGNORECASE) for name in ("nature", "plain_denial", "side", "size")
)
_WHOLE = 1000  # characters of a sentence that is read whole; the longest of 699 reports of CT-RATE has 823
_REACH = 400  # characters to each side of a mention that are read of a longer one
Vocabulary = Callable[[], tuple[str, ...]]


class _ByName(Labeler):
    """Looks for findings by their names."""

    def __init__(self, vocabulary: Vocabulary = tuple, *, findings: tuple[str, ...] = ()) -> None:
        self._vocabulary, self._findings = vocabulary, findings

    def label_names(self) -> tuple[str, ...]:
        return self._findings or self._vocabulary() or CT_RATE_FINDINGS


class Phrases(_ByName):
    """Find findings by their exact names; a cue anywhere in the sentence decides whether it is denied.

    Right for phantom reports and for verdicts on options ("B lung nodule present."), where each sentence
    speaks of findings in one way; `negation-rules` is for radiologists' sentences.

    Args:
        findings: the names to look for; left out, those of the recipe's data sets, or the 18 of CT-RATE.
    """

    def __call__(self, text: str) -> tuple[Finding, ...]:
        """Return every mention, in the order of the text."""
        result = []
        for sentence_text, offset, mentions in _sentences_that_mention(text, _names(self.label_names())):
            state: State = "present"
            if _either("doubts_after", "doubts_before").search(sentence_text):
                state = "uncertain"
            elif _PLAIN_DENIAL.search(sentence_text):
                state = "absent"
            result += [_finding(name, state, sentence_text, mention, offset) for name, mention in mentions]
        return tuple(result)


class NegationRules(_ByName):
    """Find findings in radiologists' English, each with the reach of "no", "cannot be excluded" and the like.

    Within a sentence, a denial or doubt before a mention reaches forward to it and one behind reaches back,
    unless a word such as "but" or another statement stands between. Where both reach, doubt wins over denial.
    A mention that only tells history ("history of …") says nothing of this scan and is left out.

    Args:
        findings: the names to look for; left out, those of the recipe's data sets, or the 18 of CT-RATE. For
            these 18 radiologists' other words are known, for all others what `_ways` says.
    """

    def __call__(self, text: str) -> tuple[Finding, ...]:
        """Return every mention, in the order of the text."""
        result = []
        for sentence_text, offset, mentions in _sentences_that_mention(text, _lexicon(self.label_names())):
            for name, mention in mentions:
                state = None if _is_elsewhere(name, sentence_text) else _state(sentence_text, mention)
                if state is not None:
                    result.append(_finding(name, state, sentence_text, mention, offset))
        return tuple(result)


def _sentences_that_mention(
    text: str, lexicon: Mapping[str, re.Pattern[str]]
) -> Iterator[tuple[str, int, list[tuple[str, Stretch]]]]:
    """Yield each sentence that names findings, where it starts, and where in it they are named.

    Of overlapping mentions the longest is meant. Patterns run over the whole text, which is much faster than
    over each sentence; none of them can match a full stop, so no mention reaches into the next sentence. Of
    a very long sentence each mention is given its own surroundings, so that work grows as the text does.
    """
    every = [
        (name, Stretch(*match.span(match.lastgroup or 0)))  # of a group `at_…` that took part, else of all
        for name, pattern in lexicon.items()
        for match in pattern.finditer(text)
    ]
    every.sort(key=lambda item: (item[1].start - item[1].end, item[1].start))
    longest: list[tuple[str, Stretch]] = []
    is_taken = bytearray(len(text))
    for name, stretch in every:
        if not any(is_taken[stretch.start : stretch.end]):
            is_taken[stretch.start : stretch.end] = b"\1" * (stretch.end - stretch.start)
            longest.append((name, stretch))
    longest.sort(key=lambda item: item[1].start)
    starts = [stretch.start for _, stretch in longest]
    for sentence in sentences(text):
        first, last = (bisect.bisect_left(starts, at) for at in (sentence.start, sentence.end))
        inside = [(name, stretch) for name, stretch in longest[first:last] if stretch.end <= sentence.end]
        is_long = sentence.end - sentence.start > _WHOLE
        for mentions in ([item] for item in inside) if is_long else [inside] if inside else []:
            start = max(sentence.start, mentions[0][1].start - _REACH) if is_long else sentence.start
            end = min(sentence.end, mentions[0][1].end + _REACH) if is_long else sentence.end
            placed = [(name, Stretch(entry.start - start, entry.end - start)) for name, entry in mentions]
            yield text[start:end], start, placed


def _is_elsewhere(name: str, sentence_text: str) -> bool:
    """Tell whether a sentence speaks of another organ than the finding's."""
    others = RULES["elsewhere"].get(name)
    return (
        others is not None
        and _any_of(tuple(others)).search(sentence_text) is not None
        and _either("lungs").search(sentence_text) is None
    )


def _state(sentence_text: str, mention: Stretch) -> State | None:
    """Return what a sentence says of a mention, None where it only tells history."""
    before, after = sentence_text[: mention.start], _either("aside").sub(" ", sentence_text[mention.end :])
    ends = list(_either("ends_scope").finditer(before))
    before = before[ends[-1].end() :] if ends else before
    end = _either("ends_scope").search(after)
    after = after[: end.start()] if end else after
    if _either("tells_history").search(_either("compares").sub(" ", before)):
        return None
    before = _either("denies_nothing").sub(" ", before)
    after = _either("denies_nothing").sub(" ", after)
    if _either("doubts_after").search(before) or _either("doubts_before").search(after):
        return "uncertain"
    inside = sentence_text[mention.start : mention.end]  # "lymph nodes were not enlarged"
    if _either("denies_after").search(f"{before} {inside}") or _either("denies_before").search(after):
        return "absent"
    return "present"


def _finding(name: str, state: State, sentence_text: str, mention: Stretch, offset: int) -> Finding:
    place, malignant = _nearest(_places(), sentence_text, mention), None  # the organ, or the part of one
    if state != "absent" and (word := _nearest(_NATURE, sentence_text, mention)) and not word["doubt"]:
        malignant = bool(word["malignant"]) != bool(word["not"])
    return Finding(
        name=name,
        state=state,
        side=_side(sentence_text, mention),
        size_mm=_size_mm(sentence_text, mention) if state != "absent" else None,
        malignant=malignant,
        location=place.lastgroup.replace("_", " ") if place and place.lastgroup else None,
        span=Span(start=offset + mention.start, end=offset + mention.end, label=state),
    )


def _side(sentence_text: str, mention: Stretch) -> Side | None:
    """Return the side said nearest to a mention, in its own clause."""
    start = max((m.end() for m in re.finditer(r"[,;]", sentence_text[: mention.start])), default=0)
    stop = re.search(r"[,;]", sentence_text[mention.end :])
    clause = sentence_text[start : mention.end + stop.start() if stop else len(sentence_text)]
    result = [match.group(1).lower() for match in _SIDE.finditer(clause)]
    if not result:
        return None
    if any(side.startswith(("both", "bilateral")) for side in result) or {"left", "right"} <= set(result):
        return "both"
    return "left" if result[0] == "left" else "right"


def _size_mm(sentence_text: str, mention: Stretch) -> float | None:
    """Return the size said nearest to a mention, the larger axis where two are given."""
    size = _nearest(_SIZE, sentence_text, mention)
    if size is None:
        return None
    numbers = [float(n.replace(",", ".")) for n in re.findall(r"\d+(?:[.,]\d+)?", size.group())]
    return max(numbers) * (10.0 if size.group(2).lower() == "cm" else 1.0)


def _nearest(pattern: re.Pattern[str], sentence_text: str, mention: Stretch) -> re.Match[str] | None:
    """Return what matches nearest to a mention, of equally near the first."""
    result = pattern.finditer(sentence_text)
    return min(result, key=lambda m: max(mention.start - m.end(), m.start() - mention.end, 0), default=None)


@functools.cache
def _places() -> re.Pattern[str]:
    ways = "|".join(f"(?P<{name.replace(' ', '_')}>{way})" for name, way in RULES["locations"].items())
    return re.compile(rf"\b(?:{ways})\b", re.IGNORECASE)


@functools.cache
def _either(*rules: str) -> re.Pattern[str]:
    return _any_of(tuple(cue for rule in rules for cue in RULES[rule]))


@functools.cache
def _any_of(cues: tuple[str, ...]) -> re.Pattern[str]:
    # cues of letters only match whole words; punctuation cues match as they are
    inner = "|".join(cue if cue[0] in ",;:\\" else rf"(?<![\w-])(?:{cue})(?![\w-])" for cue in cues)
    return re.compile(inner, re.IGNORECASE)


@functools.cache
def _names(findings: tuple[str, ...]) -> Mapping[str, re.Pattern[str]]:
    return {name: re.compile(rf"\b{re.escape(name)}(?:s|es)?\b", re.IGNORECASE) for name in findings}


@functools.cache
def _lexicon(findings: tuple[str, ...]) -> Mapping[str, re.Pattern[str]]:
    known = {
        name: [re.sub(r"%(\w+)%", lambda piece: RULES["pieces"][piece[1]], way) for way in ways]
        for name, ways in RULES["findings"].items()
    }
    result = {}
    for name in findings:
        ways = [re.escape(name), *(known.get(name) or _ways(name))]
        # a group may be named once: `at` becomes `at_0`, `at_1`, ...
        named = [way.replace("(?P<at>", f"(?P<at_{number}>") for number, way in enumerate(ways)]
        result[name] = re.compile(rf"\b(?:{'|'.join(named)})\b", re.IGNORECASE)
    return result


def _ways(name: str) -> Iterator[str]:
    """Yield how else a finding is written: "renal cysts", "cyst in the left kidney"."""
    words = [RULES["otherwise"].get(word, rf"{re.escape(word)}(?:s|es)?") for word in name.lower().split()]
    yield " ".join(f"(?:{word})" for word in words)
    if len(words) == 2:
        organ, lesion = words
        yield rf"(?P<at>{lesion})(?: (?:is|are) seen)? (?:in|of|within) (?:the |both )?(?:\w+ )?(?:{organ})"
