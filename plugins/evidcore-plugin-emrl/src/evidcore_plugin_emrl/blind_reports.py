"""Rules for a report and its slice that read words alone: what training reports said, and where it was seen.

A rule affirms a set of findings and cites the slice at the usual height: the median of the gold slices, as a
share of those that are shown. The rule is taken that is best about training patients it has not learnt from.

`usual_slices` is the harder rival of a slice: it is told the right report, and cites where training scans
with those findings most often show one.
"""

import collections
import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from evidcore.api import Finding, Prompt, TextPart
from evidcore.case import Evidence
from evidcore.evaluate.reference_lines import cluster_of, folds
from evidcore_plugin_emrl.evidence_figures import Seen, seen

_HEIGHTS = tuple((index + 0.5) / 64 for index in range(64))  # from the first slice shown to the last
MOST_FINDINGS = 5  # that a rule affirms, beside the most frequent report, which has any number


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rule:
    """What it affirms, and whether it goes by the words of the question."""

    findings: int | None  # so many of the most frequent; None: those of the most frequent report
    by_words: bool

    @property
    def name(self) -> str:
        """Return what it does."""
        what = "the most frequent report"
        if self.findings is not None:
            what = "the most frequent finding" + (f"s, {self.findings} of them" if self.findings > 1 else "")
        return f"{what} and its usual slice" + (" of what is asked in these words" if self.by_words else "")


RULES = tuple(
    Rule(findings=count, by_words=by_words)
    for by_words in (False, True)
    for count in (None, *range(1, MOST_FINDINGS + 1))
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Said:
    """What a rule answers."""

    findings: tuple[Finding, ...]
    evidence: Evidence | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Known:
    """A training question."""

    patient: str
    words: str
    shown: tuple[int, ...]
    seen: Seen

    def heights(self) -> dict[str, float]:
        """Return the place of each finding's gold slice among those that are shown, from 0 to 1."""
        return {name: (self.shown.index(z) + 0.5) / len(self.shown) for name, z in self.seen.gold.items()}


def best_answers(
    prompts: Sequence[Prompt], training: Sequence[Prompt], cache_folder: Path
) -> tuple[Rule, list[Said]]:
    """Return the rule that is best about training patients it has not learnt from, and what it says.

    The cases of `prompts` are not looked at. Of equally good rules the first is taken.

    Raises:
        ValueError: if there are no training questions.
    """
    if not training:
        raise ValueError("blind rules learn from training questions, and there are none")
    known = [
        _Known(
            patient=cluster_of(prompt), words=_words(prompt), shown=_shown(prompt),
            seen=seen(prompt, cache_folder),
        )
        for prompt in training
    ]  # fmt: skip
    cites_each = any(entry.seen.cites_each for entry in known)
    scores = dict.fromkeys(RULES, 0.0)
    for others, held in folds([entry.patient for entry in known]):
        for rule in RULES:
            fitted = _Fitted([known[index] for index in others], rule, cites_each)
            for entry in (known[index] for index in held):
                said = fitted.says(entry.words, entry.shown)
                affirmed = {item.name for item in said.findings}
                scores[rule] += entry.seen.grounded_accuracy(affirmed, said.evidence)
    best = max(RULES, key=lambda rule: scores[rule])
    fitted = _Fitted(known, best, cites_each)
    return best, [fitted.says(_words(prompt), _shown(prompt)) for prompt in prompts]


def usual_slices(
    prompts: Sequence[Prompt], training: Sequence[Prompt], cache_folder: Path
) -> list[Evidence | None]:
    """Return the slices that training scans most often show the findings of each case on.

    The volume of a prompt is not looked at, but which findings it has is told. Where one slice is cited for a
    report, it is the one on which any of them is likeliest seen, taken as independent of each other, and the
    first of slices alike. None for a healthy scan, and where training has none of its findings.
    """
    hits: dict[str, list[list[bool]]] = {}  # by finding and training scan, by height
    for item in training:
        known, shown = seen(item, cache_folder), _shown(item)
        for name, areas in known.areas.items():
            hits.setdefault(name, []).append([areas.get(_at(at, shown), 0) > 0 for at in _HEIGHTS])
    rates = {name: [*map(statistics.fmean, zip(*some, strict=True))] for name, some in hits.items()}
    return [_likeliest(seen(prompt, cache_folder), _shown(prompt), rates) for prompt in prompts]


def _likeliest(known: Seen, shown: Sequence[int], rates: Mapping[str, Sequence[float]]) -> Evidence | None:
    """Return the heights at which findings are likeliest seen, as slices of a scan."""

    def best(names: Sequence[str]) -> int:
        missed = [math.prod(1 - rates[name][index] for name in names) for index in range(len(_HEIGHTS))]
        return _at(_HEIGHTS[missed.index(min(missed))], shown)

    names = [name for name in known.present if name in rates]
    if not names:
        return None
    if known.cites_each:
        return Evidence(slices={name: best([name]) for name in names})
    return Evidence(slice=best(names))


class _Fitted:
    """A rule that has learnt."""

    def __init__(self, known: Sequence[_Known], rule: Rule, cites_each: bool) -> None:
        """Learn from questions in each wording, and from all for words that training never used."""
        self._cites_each = cites_each
        self._usual = _usual(known, rule)
        by_words: dict[str, list[_Known]] = {}
        for item in known if rule.by_words else ():
            by_words.setdefault(item.words, []).append(item)
        self._by_words = {words: _usual(some, rule) for words, some in by_words.items()}

    def says(self, words: str, shown: Sequence[int]) -> Said:
        """Return its answer to a question over a scan of which slices are shown."""
        usual = self._by_words.get(words, self._usual)
        slices = {name: _at(height, shown) for name, height in usual.items()}
        evidence = None
        if slices:
            middle = _at(statistics.median(usual.values()), shown)
            evidence = Evidence(slices=slices) if self._cites_each else Evidence(slice=middle)
        return Said(findings=tuple(Finding(name=name) for name in usual), evidence=evidence)


def _usual(known: Sequence[_Known], rule: Rule) -> dict[str, float]:
    """Return the findings that a rule affirms, each with its usual height."""
    if rule.findings is None:
        reports = collections.Counter(item.seen.present for item in known)
        ((affirmed, _),) = reports.most_common(1)
    else:
        counts = collections.Counter(name for item in known for name in item.seen.present)
        affirmed = tuple(name for name, _ in counts.most_common(rule.findings))
    heights: dict[str, list[float]] = {}
    for item in known:
        for name, height in item.heights().items():
            heights.setdefault(name, []).append(height)
    return {name: statistics.median(heights[name]) for name in affirmed if name in heights}


def _at(height: float, shown: Sequence[int]) -> int:
    return shown[min(len(shown) - 1, int(height * len(shown)))]


def _shown(prompt: Prompt) -> tuple[int, ...]:
    return tuple(prompt.reference["shown"])


def _words(prompt: Prompt) -> str:
    """Return what is asked; numbers of slices are no words."""
    texts = (part.text for part in prompt.parts if isinstance(part, TextPart))
    words = (word for text in texts for word in text.split())
    return " ".join(dict.fromkeys(word for word in words if not any(map(str.isdigit, word))))
