"""Who the phantoms are: what each has, and how well a line of text predicts it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from evidcore.text.findings import CT_RATE_FINDINGS
from evidcore_plugin_phantoms.canvas import LEFT, RIGHT
from evidcore_plugin_phantoms.priors import chances
from evidcore_plugin_phantoms.signs import SIDED

# Hidden patient types. Every finding belongs to one, so that text predicts all findings equally well.
INDICATIONS: dict[str, tuple[str, str, str]] = {
    "heart failure": ("cardiomegaly", "medical material", "interlobular septal thickening"),
    "chest pain": (
        "arterial wall calcification",
        "coronary artery wall calcification",
        "hiatal hernia",
    ),
    "smoker": ("emphysema", "pulmonary fibrotic sequela", "lung nodule"),
    "fever": ("consolidation", "lung opacity", "atelectasis"),
    "known cancer": ("lymphadenopathy", "pericardial effusion", "pleural effusion"),
    "chronic cough": ("bronchiectasis", "mosaic attenuation pattern", "peribronchial thickening"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Patient:
    """What a phantom is to show."""

    present: tuple[bool, ...]  # by finding
    sides: tuple[int, ...]  # by finding; RIGHT or LEFT, meaningful for the sided ones
    indication: str


def probabilities(prevalence: float, prior_strength: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return how likely each finding is for each type of patient, shape (indication, finding)."""
    return chances(CT_RATE_FINDINGS, INDICATIONS, prevalence=prevalence, prior_strength=prior_strength)


def draw_patient(rng: np.random.Generator, *, prevalence: float, prior_strength: float) -> Patient:
    """Draw a patient's type, then the findings given the type, then sides."""
    kind = int(rng.integers(len(INDICATIONS)))
    present = rng.random(len(CT_RATE_FINDINGS)) < probabilities(prevalence, prior_strength)[kind]
    sides = rng.integers(RIGHT, LEFT + 1, len(CT_RATE_FINDINGS))
    return Patient(
        present=tuple(bool(flag) for flag in present),
        sides=tuple(int(side) for side in sides),
        indication=tuple(INDICATIONS)[kind],
    )


def side_of(finding: str, side: int) -> str | None:
    """Return "left" or "right" for a finding that has a side."""
    if finding not in SIDED:
        return None
    return "left" if side == LEFT else "right"
