"""Which reports are copies of each other.

Normal findings are told in the same words again and again, so equal words alone prove nothing. What two
reports share counts where hardly anybody else says it: runs of five words that few patients have. A text that
many patients share is a template and no fault.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence

RUN_WORDS = 5
RARE_RUNS = 10  # that two reports share and fewer than TEMPLATE_PATIENTS patients have
ALIKE = 0.8  # Jaccard: runs in both over runs in either
TEMPLATE_PATIENTS = 5  # as many share a template
_COMMON = 20  # runs that more reports hold point to no pair

Runs = frozenset[int]  # by hash: the words themselves would fill the memory


@dataclasses.dataclass(frozen=True, kw_only=True)
class Alike:
    """Two reports of different patients that say the same."""

    first: int
    second: int
    share: float  # of the runs of five words in either, how many are in both; 1 where all words are equal
    words: int  # of the shorter


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compared:
    """What a comparison of all reports found."""

    alike: tuple[Alike, ...]
    templates: int  # texts that many patients share


def compare(reports: Sequence[str], patients: Sequence[str]) -> Compared:
    """Compare each report with each other one.

    Args:
        reports: the texts.
        patients: whose they are; reports of one patient are not compared.
    """
    words = [tuple(re.findall(r"\w+", report.casefold())) for report in reports]
    runs = [_runs(item) for item in words]
    holders: dict[int, list[int]] = collections.defaultdict(list)
    for number, mine in enumerate(runs):
        for run in mine:
            holders[run].append(number)
    exact = _groups(words)
    templates = [group for group in exact if len({patients[n] for n in group}) >= TEMPLATE_PATIENTS]
    found = []
    for first, second in sorted(_candidates(holders, exact)):
        if patients[first] == patients[second]:
            continue
        both = runs[first] & runs[second]
        share = 1.0 if words[first] == words[second] else len(both) / len(runs[first] | runs[second])
        rare = sum(len({patients[number] for number in holders[run]}) < TEMPLATE_PATIENTS for run in both)
        if share >= ALIKE and rare >= RARE_RUNS:
            count = min(len(words[first]), len(words[second]))
            found.append(Alike(first=first, second=second, share=share, words=count))
    return Compared(alike=tuple(found), templates=len(templates))


def _runs(words: tuple[str, ...]) -> Runs:
    return frozenset(hash(words[start : start + RUN_WORDS]) for start in range(len(words) - RUN_WORDS + 1))


def _groups(words: Sequence[tuple[str, ...]]) -> list[list[int]]:
    """Return the groups of equal texts, the first of a group first."""
    places: dict[tuple[str, ...], list[int]] = collections.defaultdict(list)
    for number, item in enumerate(words):
        if item:
            places[item].append(number)
    return [group for group in places.values() if len(group) > 1]


def _candidates(
    holders: Mapping[int, Sequence[int]], exact: Sequence[Sequence[int]]
) -> Iterator[tuple[int, int]]:
    """Yield the pairs that share enough rare runs, and every copy with the first of its group."""
    pairs = {(group[0], other) for group in exact for other in group[1:]}
    copies = {number for group in exact for number in group[1:]}
    shared: collections.Counter[tuple[int, int]] = collections.Counter()
    for numbers in holders.values():
        originals = [number for number in numbers if number not in copies]
        if 1 < len(originals) <= _COMMON:
            shared.update(itertools.combinations(originals, 2))
    yield from pairs | {pair for pair, count in shared.items() if count >= RARE_RUNS}
