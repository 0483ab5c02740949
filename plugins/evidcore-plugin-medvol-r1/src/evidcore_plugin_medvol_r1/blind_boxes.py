"""Blind rules for segmentations: where in a volume things lay in training, without a look at this one."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from evidcore.case import Answer, Box, Evidence, Prompt
from evidcore.contracts import Task
from evidcore.volume import read_geometry
from evidcore_plugin_medvol_r1.followed import gold_evidence

Place = tuple[float, ...]  # z, y0, y1, x0, x1 as shares of the volume


def _words(prompt: Prompt) -> str:
    """Return the query, or the whole prompt, in which slices may have numbers of their own."""
    return str(prompt.reference.get("query") or prompt.written())


RULES: Mapping[str, Callable[[Prompt], object]] = {
    "the usual place": lambda prompt: None,
    "the usual place of what is asked in these words": _words,
}


def blind_answers(
    prompts: Sequence[Prompt], training: Sequence[Prompt], task: Task
) -> dict[str, list[Answer]]:
    """Return each rule's answers: the median gold slice and box of the training questions that it goes by.

    A rule that knows no such question takes the median of all. Of several gold boxes, the largest counts.

    Args:
        prompts: what is asked.
        training: training questions of the same task, with gold answers.
        task: writes and reads gold answers.

    Raises:
        ValueError: if there are no training questions.
    """
    if not training:
        raise ValueError("blind rules learn from training questions, and there are none")
    places = [_place(prompt, task) for prompt in training]
    found = {}
    for name, key in RULES.items():
        by_key: dict[object, list[Place]] = {}
        for prompt, place in zip(training, places, strict=True):
            by_key.setdefault(key(prompt), []).append(place)
        usual = {known: _median(some) for known, some in by_key.items()}
        everywhere = _median(places)
        found[name] = [_answer(prompt, usual.get(key(prompt), everywhere)) for prompt in prompts]
    return found


def _place(prompt: Prompt, task: Task) -> Place:
    depth, height, width = read_geometry(prompt.case.volumes[0]).shape_zyx
    boxes = gold_evidence(prompt, task).boxes
    box = max(boxes, key=lambda one: (one.y1 - one.y0) * (one.x1 - one.x0))
    return (box.z + 0.5) / depth, box.y0 / height, box.y1 / height, box.x0 / width, box.x1 / width


def _median(places: Sequence[Place]) -> Place:
    return tuple(map(statistics.median, zip(*places, strict=True)))


def _answer(prompt: Prompt, place: Place) -> Answer:
    depth, height, width = read_geometry(prompt.case.volumes[0]).shape_zyx
    z = min(depth - 1, int(place[0] * depth))
    y0, y1 = _span(place[1], place[2], height)
    x0, x1 = _span(place[3], place[4], width)
    return Answer(text="", evidence=Evidence(slice=z, boxes=(Box(z=z, y0=y0, y1=y1, x0=x0, x1=x1),)))


def _span(start: float, stop: float, size: int) -> tuple[int, int]:
    """Return first and last voxel, stop excluded, of a share of an axis; at least one voxel."""
    first = min(size - 1, round(start * size))
    return first, min(size, max(first + 1, round(stop * size)))
