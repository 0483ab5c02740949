"""What a reader goes by: the lesions of a slice, or its height, the patient, or nothing at all."""

import collections
import dataclasses
from collections.abc import Callable, Hashable, Sequence
from statistics import fmean

Seen = frozenset[str]
HABITS = ("always", "height", "patient")  # of equally good explanations the first
AS_GOOD = 0.02


@dataclasses.dataclass(frozen=True, kw_only=True)
class Look:
    """A slice, and what a reader named on it."""

    patient: str
    height: float  # 0 at the scan's lowest edge, 1 at its highest
    shows: Seen  # by the masks
    named: Seen


@dataclasses.dataclass(frozen=True, kw_only=True)
class Habits:
    """What explains a reader's answers best."""

    goes_by: str  # "lesions", or one of HABITS
    explained: dict[str, float]  # share of answers, 0..1, by explanation
    always: Seen  # the commonest answer


def habits(looks: Sequence[Look]) -> Habits:  # a probe of air or noise may lack the reader's cue
    """Compare what explains a reader's answers.

    An explanation foretells an answer from the masks of the slice ("lesions"), or as the commonest answer
    to other slices: to all ("always"), to those of other patients at its height, or to those of its patient.
    Its share of right foretellings is the mean of two: over slices with a lesion and without. A habit that
    explains as much as lesions do, or more, is what the reader goes by.
    """
    heights = {look: round(look.height, 2) for look in looks}
    everywhere = _counted(looks, lambda look: "")
    by_height = _counted(looks, lambda look: heights[look])
    by_patient = _counted(looks, lambda look: look.patient)
    at_height_of = _counted(looks, lambda look: (heights[look], look.patient))
    foretold: dict[str, list[tuple[bool, bool]]] = {"lesions": [], **{name: [] for name in HABITS}}
    for look in looks:
        own = collections.Counter([look.named])
        others = by_height[heights[look]] - at_height_of[heights[look], look.patient]
        guesses = {
            "lesions": look.shows,
            "always": _commonest(everywhere[""] - own),
            "height": _commonest(others),
            "patient": _commonest(by_patient[look.patient] - own),
        }
        for name, guess in guesses.items():
            foretold[name].append((bool(look.shows), guess == look.named))
    explained = {name: _balanced(pairs) for name, pairs in foretold.items()}
    best = max(explained[name] for name in HABITS)
    habit = next(name for name in HABITS if explained[name] >= best - AS_GOOD)
    goes_by = "lesions" if explained["lesions"] > best else habit
    return Habits(goes_by=goes_by, explained=explained, always=_commonest(everywhere[""]) or Seen())


def _counted(
    looks: Sequence[Look], key: Callable[[Look], Hashable]
) -> dict[Hashable, collections.Counter[Seen]]:
    result: dict[Hashable, collections.Counter[Seen]] = collections.defaultdict(collections.Counter)
    for look in looks:
        result[key(look)][look.named] += 1
    return result


def _commonest(counts: collections.Counter[Seen]) -> Seen | None:
    return min(counts, key=lambda named: (-counts[named], sorted(named))) if counts else None


def _balanced(pairs: Sequence[tuple[bool, bool]]) -> float:
    halves = [[hit for shows, hit in pairs if shows == which] for which in (True, False)]
    return fmean(fmean(half) for half in halves if half)
