"""Rules for boxes that never look at what is asked: where in a scan things lay in training.

Two families. *Blind rules* read no voxel: they know the words and the header. *Registration* reads the
outline of the body and a profile along it (`scan_facts.outlined`), as any method does that aligns scans; it
is not blind to pixels, it is blind to what is asked: what it learns of a scan moves the usual places of all
queries alike. Of each family the rule is taken whose boxes overlap best those of training patients that it
has not learnt from.
"""

import dataclasses
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from evidcore.api import Answer, Box, Prompt, Task, VolumeRef
from evidcore.case import Evidence
from evidcore.evaluate.reference_lines import cluster_of, folds
from evidcore_plugin_medvol_r1.followed import gold_evidence
from evidcore_plugin_medvol_r1.scan_facts import Scan

Array = np.ndarray[Any, np.dtype[np.float64]]
Place = tuple[float, ...]  # z, y0, y1, x0, x1 as shares of a scan's frame
FARTHEST = 4.0  # standard deviations: a scan that is odder moves a place no further


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rule:
    """The median slice and box of the training questions that it goes by, moved by the facts of the scan."""

    name: str
    by_words: bool  # of questions in the same words; of words that training never used, of all
    strength: float | None = None  # of the ridge penalty on the facts of a scan; None: nothing is moved


STRENGTHS = (10.0, 100.0, 1000.0)
USUAL = Rule(name="the usual place", by_words=False)
WORDED = Rule(name="the usual place of what is asked in these words", by_words=True)
BLIND = (
    USUAL, WORDED,
    *(Rule(name=f"{WORDED.name}, moved by the header", by_words=True, strength=one) for one in STRENGTHS),
)  # fmt: skip
IN_BODY = "the usual place in the body's outline of what is asked in these words"
REGISTRATION = (
    Rule(name=IN_BODY, by_words=True),
    *(Rule(name=f"{IN_BODY}, moved by its profile", by_words=True, strength=one) for one in STRENGTHS),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Known:
    """A training question: whose, in what words, over which scan, and where the answer lies."""

    patient: str
    words: str
    scan: Scan
    place: Place


def best_answers(
    prompts: Sequence[Prompt],
    training: Sequence[Prompt],
    task: Task,
    rules: Sequence[Rule],
    look: Callable[[VolumeRef], Scan],
) -> tuple[Rule, list[Answer]]:
    """Return the rule that is best about training patients it has not learnt from, and its answers.

    Of several gold boxes of a training question the largest counts, of equally good rules the first.

    Raises:
        ValueError: if there are no training questions.
    """
    if not training:
        raise ValueError("blind rules learn from training questions, and there are none")
    known = [_known(prompt, task, look) for prompt in training]
    overlaps = dict.fromkeys(rules, 0.0)
    for others, left_out in folds([item.patient for item in known]) if len(rules) > 1 else ():
        for rule in rules:
            fitted = _Fitted([known[index] for index in others], rule)
            for item in (known[index] for index in left_out):
                overlaps[rule] += _overlap(item.scan, fitted.place(item.words, item.scan), item.place)
    best = max(rules, key=lambda rule: overlaps[rule])
    fitted = _Fitted(known, best)
    answers = []
    for prompt in prompts:
        scan = look(prompt.case.volumes[0])
        box = _box(scan, fitted.place(_words(prompt), scan))
        answers.append(Answer(text="", evidence=Evidence(slice=box.z, boxes=(box,))))
    return best, answers


class _Fitted:
    """A rule that has learnt."""

    def __init__(self, known: Sequence[_Known], rule: Rule) -> None:
        """Take medians; with a strength, fit how far a scan's questions lie off them, whatever is asked."""
        places: dict[str, list[Place]] = {}
        for item in known if rule.by_words else ():
            places.setdefault(item.words, []).append(item.place)
        self._usual = {words: _median(some) for words, some in places.items()}
        self._everywhere = _median([item.place for item in known])
        self._moves: Array | None = None
        if rule.strength is not None:
            facts = np.array([item.scan.facts for item in known])
            off = np.array([item.place for item in known]) - [self._usual_place(item.words) for item in known]
            self._mean, spread = facts.mean(axis=0), facts.std(axis=0)
            self._spread = np.where(spread < 1e-9 * (1 + np.abs(self._mean)), np.inf, spread)
            shown = self._standardised(facts)
            penalty = rule.strength * np.eye(shown.shape[1])
            self._moves = np.linalg.solve(shown.T @ shown + penalty, shown.T @ (off - off.mean(axis=0)))

    def place(self, words: str, scan: Scan) -> Place:
        """Return where it says that something lies."""
        usual = self._usual_place(words)
        if self._moves is None:
            return usual
        move = self._standardised(np.array(scan.facts)) @ self._moves
        return tuple(float(each) for each in np.array(usual) + move)

    def _usual_place(self, words: str) -> Place:
        return self._usual.get(words, self._everywhere)

    def _standardised(self, facts: Array) -> Array:
        return np.asarray(np.clip((facts - self._mean) / self._spread, -FARTHEST, FARTHEST))


def _words(prompt: Prompt) -> str:
    """Return the query, or the whole prompt, in which slices may have numbers of their own."""
    return str(prompt.reference.get("query") or prompt.written())


def _known(prompt: Prompt, task: Task, look: Callable[[VolumeRef], Scan]) -> _Known:
    scan = look(prompt.case.volumes[0])
    boxes = gold_evidence(prompt, task).boxes
    box = max(boxes, key=lambda item: (item.y1 - item.y0) * (item.x1 - item.x0))
    edges = np.array([box.z + 0.5, box.y0, box.y1, box.x0, box.x1])
    start, stop = np.array(scan.frame)[[0, 1, 1, 2, 2]].T
    place = tuple(((edges - start) / (stop - start)).tolist())
    return _Known(patient=cluster_of(prompt), words=_words(prompt), scan=scan, place=place)


def _median(places: Sequence[Place]) -> Place:
    return tuple(map(statistics.median, zip(*places, strict=True)))


def _box(scan: Scan, place: Place) -> Box:
    """Return a place as voxels of the scan, at least one of each axis."""
    start, stop = np.array(scan.frame)[[0, 1, 1, 2, 2]].T
    z, y0, y1, x0, x1 = (start + np.array(place) * (stop - start)).tolist()
    depth, height, width = scan.shape_zyx
    y_first, y_stop = _span(y0, y1, height)
    x_first, x_stop = _span(x0, x1, width)
    return Box(z=min(depth - 1, max(0, int(z))), y0=y_first, y1=y_stop, x0=x_first, x1=x_stop)


def _span(start: float, stop: float, size: int) -> tuple[int, int]:
    """Return first and last voxel, stop excluded, of a stretch of an axis; at least one voxel."""
    first = max(0, min(size - 1, round(start)))
    return first, min(size, max(first + 1, round(stop)))


def _overlap(scan: Scan, one: Place, other: Place) -> float:
    """Return the intersection over union of two boxes that are taken to be as deep as they are wide."""
    _, dy, dx = scan.spacing_mm_zyx
    edges: list[list[tuple[float, float]]] = []
    for box in (_box(scan, one), _box(scan, other)):
        z_mm = (box.z + 0.5) * scan.spacing_mm_zyx[0]
        y_mm, x_mm = (box.y0 * dy, box.y1 * dy), (box.x0 * dx, box.x1 * dx)
        half_mm = 0.5 * ((y_mm[1] - y_mm[0]) * (x_mm[1] - x_mm[0])) ** 0.5
        edges.append([(z_mm - half_mm, z_mm + half_mm), y_mm, x_mm])
    shared, first, second = 1.0, 1.0, 1.0
    for (a0, a1), (b0, b1) in zip(*edges, strict=True):
        shared *= max(0.0, min(a1, b1) - max(a0, b0))
        first, second = first * (a1 - a0), second * (b1 - b0)
    return shared / (first + second - shared)
