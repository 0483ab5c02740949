"""How well a reader reads slices: AUC, sensitivity on a lesion's largest slice, and what it leaves alone.

A slice *shows* a finding from `LEAST_PIXELS` of its mask on. A slice with fewer, but some, counts neither for
nor against that finding. A *lesion* is a connected part of a finding's mask; it is looked for on the slice
that shows most of it. A *lesion-free* slice holds no pixel of any finding.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy  # loads its parts when they are first asked for
from sklearn.metrics import roc_auc_score

from evidcore.api import Case, read_mask
from evidcore.data import volume_cache

Areas = np.ndarray[Any, np.dtype[np.int64]]
Scores = np.ndarray[Any, np.dtype[np.float64]]
Named = np.ndarray[Any, np.dtype[np.bool_]]

LEAST_PIXELS = 3
LEAST_AUC = 0.95  # a reader that a cross-view reward may rest on: mean over findings
LEAST_SENSITIVITY = 0.80  # over lesions
LEAST_SPECIFICITY = 0.97  # over lesion-free slices


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shown:
    """What a volume shows, slice by slice."""

    areas: Areas  # (slice, finding), pixels
    lesions: tuple[tuple[int, int, int], ...]  # slice that shows most of it, finding, its pixels there


def shown(case: Case, findings: Sequence[str]) -> Shown:
    """Measure the findings' masks of a case on its first volume."""
    volume = volume_cache.read(case.volumes[0])
    areas = np.zeros((volume.shape_zyx[0], len(findings)), np.int64)
    lesions: list[tuple[int, int, int]] = []
    for index, name in enumerate(findings):
        if name not in case.masks:
            continue
        mask = read_mask(case.masks[name], like=volume)
        areas[:, index] = mask.sum(axis=(1, 2))
        labels, count = scipy.ndimage.label(mask, structure=np.ones((3, 3, 3)))
        for label in range(1, count + 1):
            own = (labels == label).sum(axis=(1, 2))
            lesions.append((int(own.argmax()), index, int(own.max())))
    return Shown(areas=areas, lesions=tuple(lesions))


def is_known(case: Case, findings: Sequence[str]) -> bool:
    """Tell whether every finding that is present has a mask, so that it is known what each slice shows."""
    return bool(case.volumes) and all(name in case.masks for name in case.present() if name in findings)


def reading_figures(
    volumes: Sequence[Shown], scores: Sequence[Scores], named: Sequence[Named], findings: Sequence[str]
) -> dict[str, Any]:
    """Measure what was read of volumes: scores of any scale, and what was named, each (slice, finding).

    Returns:
        Figures in 0..1 with the numbers that they are of; None where nothing could be measured.
    """
    areas = np.concatenate([volume.areas for volume in volumes])
    score, said = np.concatenate(scores), np.concatenate(named)
    free = areas.sum(axis=1) == 0
    found: dict[str, list[bool]] = {name: [] for name in findings}
    for volume, words in zip(volumes, named, strict=True):
        for z, index, pixels in volume.lesions:
            if pixels >= LEAST_PIXELS:
                found[findings[index]].append(bool(words[z, index]))
    aucs = {name: _auc(areas[:, index], score[:, index]) for index, name in enumerate(findings)}
    every = [hit for some in found.values() for hit in some]
    measured = [auc for auc in aucs.values() if auc is not None]
    return {
        "auc": _mean(measured),
        "sensitivity": _mean(every),
        "specificity": _mean(~said[free].any(axis=1)),
        "volumes": len(volumes),
        "lesions": len(every),
        "lesion_free_slices": int(free.sum()),
        "by_finding": {
            name: {
                "auc": aucs[name],
                "sensitivity": _mean(found[name]),
                "specificity": _mean(~said[areas[:, index] == 0, index]),
                "lesions": len(found[name]),
            }
            for index, name in enumerate(findings)
        },
    }


def shortfalls(figures: dict[str, Any]) -> list[str]:
    """Return which lines a reader does not reach that a cross-view reward may rest on; empty: it may."""
    lines = {"auc": LEAST_AUC, "sensitivity": LEAST_SENSITIVITY, "specificity": LEAST_SPECIFICITY}
    return [
        f"{name} {'was not measured' if figures[name] is None else f'is {figures[name]:.3f}'}, "
        f"needs at least {least:.2f}"
        for name, least in lines.items()
        if figures[name] is None or figures[name] < least
    ]


def _auc(areas: Areas, score: Scores) -> float | None:
    told = (areas == 0) | (areas >= LEAST_PIXELS)
    shows = areas[told] > 0
    return float(roc_auc_score(shows, score[told])) if 0 < shows.sum() < len(shows) else None


def _mean(values: Any) -> float | None:
    return float(np.mean(values)) if len(values) else None
