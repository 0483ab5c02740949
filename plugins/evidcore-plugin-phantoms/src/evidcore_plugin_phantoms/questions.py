"""Question sets in which text alone is no help: findings, letters and distractors are balanced."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence

import numpy as np

LETTERS = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Item:
    """A question: the case that it is about, its options and which one is right."""

    case: int
    options: tuple[str, ...]
    answer: int


def balanced_items(
    present: Sequence[Sequence[str]], vocabulary: Sequence[str], per_finding: int, rng: np.random.Generator
) -> list[Item]:
    """Draw questions about one present finding among three absent ones.

    Each finding that occurs in the split is right `per_finding` times and as often under each letter (one
    more or less where the number is not a multiple of four), and a distractor three times as often, or as
    nearly so as the cases allow. A finding that occurs in no case is neither asked about nor offered.

    Args:
        present: the findings of each case.
        vocabulary: all findings.
        per_finding: questions per finding.
        rng: decides everything that is left open.
    """
    cases_with = {
        name: [number for number, names in enumerate(present) if name in names] for name in vocabulary
    }
    asked = [name for name in vocabulary if cases_with[name]]
    if len(asked) < LETTERS:
        return []
    owed = Counter({name: (LETTERS - 1) * per_finding for name in asked})
    pairs: list[tuple[int, str]] = []
    for name in asked:
        order = rng.permutation(cases_with[name])
        pairs += [(int(order[number % len(order)]), name) for number in range(per_finding)]
    slots = {name: _letters(index, per_finding, rng) for index, name in enumerate(asked)}
    items = []
    # the most constrained cases choose their distractors first, while every finding is still owed
    tight = sorted(rng.permutation(len(pairs)), key=lambda number: -len(present[pairs[number][0]]))
    for number in tight:
        case, name = pairs[number]
        free = [other for other in asked if other not in present[case]]
        if len(free) < LETTERS - 1:
            continue
        ranked = sorted(rng.permutation(free), key=lambda other: -owed[other])
        wrong = [str(other) for other in rng.permutation(ranked[: LETTERS - 1])]
        owed.subtract(wrong)
        answer = slots[name].pop()
        items.append(Item(case=case, options=(*wrong[:answer], name, *wrong[answer:]), answer=answer))
    return sorted(items, key=lambda item: item.case)


def _letters(place: int, count: int, rng: np.random.Generator) -> list[int]:
    letters = [(place + number) % LETTERS for number in range(count)]
    rng.shuffle(letters)
    return letters
