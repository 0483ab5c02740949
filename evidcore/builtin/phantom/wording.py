"""The words of a phantom's report, impression and questions."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

_COUNTED = frozenset({
    "atelectasis",
    "hiatal hernia",
    "lung nodule",
    "lung opacity",
    "mosaic attenuation pattern",
    "pericardial effusion",
    "pleural effusion",
    "pulmonary fibrotic sequela",
}) - {"atelectasis"}
_PLURAL = {"lung nodule": "lung nodules"}
_HEALTHY = (
    "The heart is of normal size.",
    "Trachea and main bronchi are open.",
    "The mediastinal structures are in the midline.",
    "No fracture is seen.",
)
_ABSENT = ("No {name}.", "There is no {name}.", "{Name} is not seen.")
_PRESENT = ("There is {a_named}.", "{Named} is seen.", "{Named}.")
STEMS = (
    "Which finding is present?",
    "Which of these findings does the scan show?",
    "What is seen on this chest CT?",
    "Which abnormality is visible?",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sentence:
    """A report sentence and what it says."""

    text: str
    label: str  # "normal" or "abnormal"
    finding: str | None = None  # the finding it names
    offset: int = 0  # where in the sentence the name begins


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shown:
    """A finding that a phantom shows."""

    name: str
    side: str | None = None
    size_mm: float | None = None


def named(shown: Shown) -> str:
    """Return the finding with its side in front."""
    return f"{shown.side} {shown.name}" if shown.side else shown.name


def sentences(
    rng: np.random.Generator, absent: Sequence[str], present: Sequence[Shown], *, heart_is_large: bool
) -> list[Sentence]:
    """Return a report's sentences: what is normal first, then what is not, each in random order."""
    normal = [_sentence(rng, _ABSENT, Shown(name=name), "normal") for name in absent]
    healthy = [text for text in _HEALTHY if rng.random() < 0.4 and not (heart_is_large and "heart" in text)]
    normal += [Sentence(text=text, label="normal") for text in healthy]
    abnormal = [_sentence(rng, _PRESENT, shown, "abnormal") for shown in present]
    rng.shuffle(normal)
    rng.shuffle(abnormal)
    return normal + abnormal


def _sentence(rng: np.random.Generator, patterns: Sequence[str], shown: Shown, label: str) -> Sentence:
    pattern = patterns[int(rng.integers(len(patterns)))]
    text = named(shown)
    article = "a " if shown.name in _COUNTED else ""
    if shown.size_mm is not None and pattern == "There is {a_named}.":
        pattern = f"There is {{a_named}} of {shown.size_mm:.0f} mm."
    line = pattern.format(name=text, Name=text.capitalize(), a_named=article + text, Named=text.capitalize())
    at = line.lower().index(shown.name)
    return Sentence(text=line, label=label, finding=shown.name, offset=at)


def impression(present: Sequence[Shown]) -> str:
    """Return the abnormal findings alone, one short sentence each."""
    return " ".join(f"{named(shown).capitalize()}." for shown in present) or "No abnormality."


def question(rng: np.random.Generator, indication: str | None) -> str:
    """Return the words of a question, with the clinical indication in front where there is one."""
    stem = STEMS[int(rng.integers(len(STEMS)))]
    return stem if indication is None else f"Indication: {indication}. {stem}"
