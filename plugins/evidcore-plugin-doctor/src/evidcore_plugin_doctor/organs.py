"""Where named masks must lie to each other, whatever the scan shows.

A relation that is off by less than `CLEAR_MM` says nothing: organs are cut by the field of view.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Literal

import numpy as np

CLEAR_MM = 20.0
Place = tuple[float, float, float]  # centroid, z, y, x in mm: to superior, posterior, left
Organ = str

_ORGANS: Mapping[Organ, re.Pattern[str]] = {
    name: re.compile(pattern)
    for name, pattern in {
        "spine": r"\b(?:spine|spinal (?:column|cord|canal)|vertebra(?:e|l (?:column|body|bodies))?)\b",
        "liver": r"^(?:liver|hepar)$",
        "spleen": r"^spleen$",
        "heart": r"^heart$",
        "stomach": r"^stomach$",
        "gallbladder": r"^gall ?bladder$",
        "bladder": r"^(?:urinary )?bladder$",
        "kidney": r"\bkidneys?\b",
        "lung": r"\blungs?\b",
        "adrenal gland": r"\badrenal glands?\b",
    }.items()
}
_FILLING = ("mask", "seg", "segmentation", "label")
_SIDED = ("kidney", "lung", "adrenal gland")
_LESION = re.compile(r"\b(?:lesion|tumou?r|cyst|nodule|mass|cancer|vessels?|opacity|stone)s?\b")

# the first lies farther along the axis than the second: 0 up, 1 back, 2 left
RELATIONS: tuple[tuple[Organ, Organ, int], ...] = (
    ("spleen", "liver", 2),
    ("stomach", "liver", 2),
    ("heart", "liver", 2),
    ("kidney left", "kidney right", 2),
    ("lung left", "lung right", 2),
    ("adrenal gland left", "adrenal gland right", 2),
    ("kidney left", "liver", 2),
    ("spleen", "kidney right", 2),
    ("spleen", "gallbladder", 2),
    ("spleen", "spine", 2),
    ("spine", "liver", 2),
    ("kidney left", "spine", 2),
    ("spine", "kidney right", 2),
    ("lung left", "spine", 2),
    ("spine", "lung right", 2),
    ("spine", "liver", 1),
    ("spine", "heart", 1),
    ("spine", "stomach", 1),
    ("spine", "bladder", 1),
    ("kidney left", "stomach", 1),
    ("heart", "liver", 0),
    ("heart", "kidney left", 0),
    ("heart", "kidney right", 0),
    ("heart", "bladder", 0),
    ("liver", "bladder", 0),
    ("spleen", "bladder", 0),
    ("kidney left", "bladder", 0),
    ("kidney right", "bladder", 0),
    ("lung left", "kidney left", 0),
    ("lung right", "kidney right", 0),
    ("lung right", "bladder", 0),
)  # fmt: skip
_AGAINST = ("below", "in front of", "to the right of")
AXES: tuple[Literal["z", "y", "x"], ...] = ("z", "y", "x")
_RUNS = ("downwards", "to the front", "to the right")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contradiction:
    """What masks say against the axes, or against their own names."""

    axis: Literal["z", "y", "x"] | None  # that runs the wrong way; None where a mask is misplaced
    text: str


def organ(mask: str) -> Organ | None:
    """Return which organ a mask's name stands for, with its side where it has two; None for others."""
    words = re.sub(r"[^a-z0-9]+", " ", mask.lower()).split()
    name = " ".join(word for word in words if word not in _FILLING)
    if _LESION.search(name):
        return None
    side = _side(name)
    for known, pattern in _ORGANS.items():
        if not pattern.search(name):
            continue
        if known not in _SIDED:
            return known
        return None if side is None else f"{known} {side}"
    return None


def _side(name: str) -> Literal["left", "right"] | None:
    words = set(name.split())
    left, right = bool(words & {"left", "l", "lt"}), bool(words & {"right", "r", "rt"})
    if left == right:
        return None
    return "left" if left else "right"


def contradictions(places: Mapping[str, Place], volumes_ml: Mapping[str, float]) -> list[Contradiction]:
    """Compare where named masks lie.

    Where every clear relation of an axis is the wrong way round, the axis is; where only some are, a mask is.

    Args:
        places: centroid by mask name.
        volumes_ml: size by mask name; several masks of an organ (lobes, vertebrae) are taken together.
    """
    organs = _organs(places, volumes_ml)
    found: list[Contradiction] = []
    for axis, name in enumerate(AXES):
        right, wrong = [], []
        for first, second, direction in RELATIONS:
            if direction != axis or first not in organs or second not in organs:
                continue
            gap_mm = float(organs[first][axis] - organs[second][axis])
            if gap_mm > CLEAR_MM:
                right.append((first, second, gap_mm))
            elif gap_mm < -CLEAR_MM:
                wrong.append((first, second, gap_mm))
        said = [f"{a} {-gap:.0f} mm {_AGAINST[axis]} {b}" for a, b, gap in wrong]
        if wrong and not right:
            found.append(
                Contradiction(
                    axis=name,
                    text=f"by its masks, {', '.join(said)}: {name} runs {_RUNS[axis]}"
                    + (", or the names of the sides are swapped" if _only_sides(wrong) else ""),
                )
            )
        else:
            found += [
                Contradiction(axis=None, text=f"{text}, while other organs lie as they should")
                for text in said
            ]
    return found


def _only_sides(relations: Iterable[tuple[Organ, Organ, float]]) -> bool:
    """Tell whether every relation hangs on the side in a mask's name."""
    return all({"left", "right"} & set(f"{first} {second}".split()) for first, second, _ in relations)


def _organs(places: Mapping[str, Place], volumes_ml: Mapping[str, float]) -> dict[Organ, Place]:
    """Return the common centroid of each organ's masks."""
    parts: dict[Organ, list[str]] = {}
    for mask in places:
        name = organ(mask)
        if name is not None:
            parts.setdefault(name, []).append(mask)
    found = {}
    for name, masks in parts.items():
        weights = [volumes_ml[mask] for mask in masks]
        z, y, x = np.average([places[mask] for mask in masks], axis=0, weights=weights)
        found[name] = (float(z), float(y), float(x))
    return found
