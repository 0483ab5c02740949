"""Where named masks must lie to each other, whatever the scan shows.

A relation that is off by less than `CLEAR_MM` says nothing: organs are cut by the field of view.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

import numpy as np

CLEAR_MM = 20.0
Place = tuple[float, float, float]  # centroid, z, y, x in mm: to superior, posterior, left
Organ = str

_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_ORGANS: Mapping[Organ, re.Pattern[str]] = {
    name: re.compile(pattern) for name, pattern in _TABLES["names"].items()
}
_FILLING = ("mask", "seg", "segmentation", "label")
_SIDES = (("left", "lt"), ("right", "rt"))
_SIDED = ("kidney", "lung", "adrenal gland")
_LESION = re.compile(r"\b(?:lesion|tumou?r|cyst|nodule|mass|cancer|vessels?|opacity|stone)s?\b")

_AGAINST = ("below", "in front of", "to the right of")
Axis = Literal["z", "y", "x"]
AXES: tuple[Axis, ...] = ("z", "y", "x")
_RUNS = ("downwards", "to the front", "to the right")


def organ(mask: str) -> Organ | None:
    """Return which organ a mask's name stands for, with its side where it has two; None for others."""
    words = re.sub(r"[^a-z0-9]+", " ", mask.lower()).split()
    name = " ".join(word for word in words if word not in _FILLING)
    if _LESION.search(name):
        return None
    left, right = ({side, side[0], short} & set(name.split()) for side, short in _SIDES)
    for known, pattern in _ORGANS.items():
        if not pattern.search(name):
            continue
        if known not in _SIDED:
            return known
        if bool(left) != bool(right):
            return f"{known} {'left' if left else 'right'}"
        return None
    return None


def contradictions(
    places: Mapping[str, Place], volumes_ml: Mapping[str, float]
) -> Iterator[tuple[Axis | None, str]]:
    """Yield what masks say against an axis, or against their own names, where the axis is None.

    Where every clear relation of an axis is the wrong way round, the axis is; where only some are, a mask is.

    Args:
        places: centroid by mask name.
        volumes_ml: size by mask name; several masks of an organ (lobes, vertebrae) are taken together.
    """
    parts: dict[Organ, list[str]] = {}
    for mask in places:
        if (name := organ(mask)) is not None:
            parts.setdefault(name, []).append(mask)
    organs = {
        name: np.average(
            [places[mask] for mask in masks], axis=0, weights=[volumes_ml[mask] for mask in masks]
        )
        for name, masks in parts.items()
    }
    for axis, letter in enumerate(AXES):
        gaps_mm = {
            (first, second): float(organs[first][axis] - organs[second][axis])
            for first, second in _TABLES["farther"][str(axis)]
            if first in organs and second in organs
        }
        wrong = {pair: gap_mm for pair, gap_mm in gaps_mm.items() if gap_mm < -CLEAR_MM}
        texts = [f"{a} {-gap_mm:.0f} mm {_AGAINST[axis]} {b}" for (a, b), gap_mm in wrong.items()]
        if not wrong:
            continue
        if max(gaps_mm.values()) > CLEAR_MM:
            yield from ((None, f"{text}, while other organs lie as they should") for text in texts)
            continue
        only_sides = all({"left", "right"} & set(f"{a} {b}".split()) for a, b in wrong)
        swapped = ", or the names of the sides are swapped" if only_sides else ""
        yield letter, f"by its masks, {', '.join(texts)}: {letter} runs {_RUNS[axis]}{swapped}"
