"""Which reports are copies of each other.

Normal findings are told in the same words again and again, so equal words alone prove nothing. What two
reports share counts where hardly anybody else says it: runs of five words that few patients have. A text that
many patients share is a template and no fault.
"""

import collections
import dataclasses
import itertools
import re
from collections.abc import Sequence

RUN_WORDS = 5
RARE_RUNS = 10  # that two reports share and fewer than TEMPLATE_PATIENTS patients have
ALIKE = 0.8  # Jaccard: runs in both over runs in either
TEMPLATE_PATIENTS = 5  # as many share a template
_COMMON = 20  # runs that more reports hold point to no pair


@dataclasses.dataclass(frozen=True, kw_only=True)
class Alike:
    """Two reports of different patients that say the same."""

    first: int
    second: int
    share: float  # of the runs of five words in either, how many are in both; 1 where all words are equal
    words: int  # of the shorter


def compare(reports: Sequence[str], patients: Sequence[str]) -> tuple[list[Alike], int]:
    """Return the reports that are alike, and how many texts are shared by many patients.

    Reports of one of the `patients`, whose they are, are not compared.
    """
    words = [tuple(re.findall(r"\w+", report.casefold())) for report in reports]
    runs = [  # by hash: the words themselves would fill the memory
        {hash(item[start : start + RUN_WORDS]) for start in range(len(item) - RUN_WORDS + 1)}
        for item in words
    ]
    holders: dict[int, list[int]] = collections.defaultdict(list)
    for number, mine in enumerate(runs):
        for run in mine:
            holders[run].append(number)
    equal: dict[tuple[str, ...], list[int]] = collections.defaultdict(list)
    for number, item in enumerate(words):
        if item:
            equal[item].append(number)
    templates = sum(len({patients[n] for n in group}) >= TEMPLATE_PATIENTS for group in equal.values())
    # every copy with the first of its text, and the pairs of first texts that share enough rare runs
    copies = {(group[0], other) for group in equal.values() for other in group[1:]}
    copied = {other for _, other in copies}
    shared: collections.Counter[tuple[int, int]] = collections.Counter()
    for numbers in holders.values():
        originals = [number for number in numbers if number not in copied]
        if 1 < len(originals) <= _COMMON:
            shared.update(itertools.combinations(originals, 2))
    alike = []
    for first, second in sorted(copies | {pair for pair, count in shared.items() if count >= RARE_RUNS}):
        if patients[first] == patients[second]:
            continue
        both = runs[first] & runs[second]
        share = 1.0 if words[first] == words[second] else len(both) / len(runs[first] | runs[second])
        rare = sum(len({patients[number] for number in holders[run]}) < TEMPLATE_PATIENTS for run in both)
        if share >= ALIKE and rare >= RARE_RUNS:
            count = min(len(words[first]), len(words[second]))
            alike.append(Alike(first=first, second=second, share=share, words=count))
    return alike, templates
