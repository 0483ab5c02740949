"""How well a line of text predicts what a phantom has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def chances(
    findings: Sequence[str],
    indications: Mapping[str, Sequence[str]],
    *,
    prevalence: float,
    prior_strength: float,
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return how likely each finding is for each type of patient, shape (indication, finding).

    Averaged over the types, which are equally frequent, each finding has probability `prevalence` whatever
    the prior strength. At strength 1 it is five times as likely (at most 0.9) in its own type of patient, or
    as often as it takes to occur in no other.

    Args:
        findings: the vocabulary.
        indications: the types of patients, each with the findings that belong to it.
        prevalence: probability of each finding.
        prior_strength: from 0, types are alike, to 1.
    """
    types = len(indications)
    own = max(prevalence, min(0.9, 5 * prevalence, types * prevalence))
    other = (prevalence - own / types) * types / (types - 1)
    belongs = np.array([[name in names for name in findings] for names in indications.values()])
    extreme = np.where(belongs, own, other)
    return np.asarray(prevalence + (extreme - prevalence) * prior_strength, dtype=np.float64)
