"""The words of a phantom's report, impression and questions."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

_COUNTED = frozenset({
    "hiatal hernia",
    "lung nodule",
    "lung opacity",
    "mosaic attenuation pattern",
    "pericardial effusion",
    "pleural effusion",
    "pulmonary fibrotic sequela",
})
_HEALTHY = (
    "The heart is of normal size.",
    "Trachea and main bronchi are open.",
    "The mediastinal structures are in the midline.",
    "No fracture is seen.",
)
_HEALTHY_BESIDE = (  # said too where absent findings are not named one by one
    "The thyroid gland appears normal.",
    "The chest wall is normal.",
    "The diaphragm is in its place.",
    "The visible parts of the liver are normal.",
    "The visible parts of the spleen are normal.",
    "The adrenal glands are normal.",
    "The visible bones are intact.",
    "The great vessels are of normal width.",
)
_ABSENT = ("No {name}.", "There is no {name}.", "{Name} is not seen.")
_PRESENT = ("There is {a_name}{size}{place}.", "{Name} is seen{place}.", "{Name}{place}.")
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
class Written:
    """Sentences as one text: where each lies with its label, and where each finding is first named."""

    text: str
    spans: tuple[tuple[int, int, str], ...]  # start, end, label
    places: dict[str, tuple[int, int]]  # finding -> start, end


def written(lines: Sequence[Sentence]) -> Written:
    """Put sentences into one text."""
    text, spans = "", []
    places: dict[str, tuple[int, int]] = {}
    for line in lines:
        start = len(text) + 1 if text else 0
        text = f"{text} {line.text}" if text else line.text
        spans.append((start, len(text), line.label))
        if line.finding is not None:
            named = start + line.offset
            places.setdefault(line.finding, (named, named + len(line.finding)))
    return Written(text=text, spans=tuple(spans), places=places)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shown:
    """A finding that a phantom shows."""

    name: str
    side: str | None = None
    size_mm: float | None = None


def sentences(
    rng: np.random.Generator,
    absent: Sequence[str],
    present: Sequence[Shown],
    *,
    heart_is_large: bool,
    names_absent: bool = True,
) -> list[Sentence]:
    """Return a report's sentences: what is normal first, then what is not, each in the order given.

    Args:
        rng: chooses sentences and their forms.
        absent: findings that are not there.
        present: those that are.
        heart_is_large: say nothing else of the heart.
        names_absent: a sentence for each absent finding; without, general sentences about what is healthy.
    """
    known, share = (_HEALTHY, 0.4) if names_absent else (_HEALTHY + _HEALTHY_BESIDE, 0.9)
    healthy = [text for text in known if rng.random() < share and not (heart_is_large and "heart" in text)]
    normal = [Sentence(text=text, label="normal") for text in healthy]
    if names_absent:
        normal += [_sentence(rng, _ABSENT, Shown(name=name), "normal") for name in absent]
    return normal + [_sentence(rng, _PRESENT, shown, "abnormal") for shown in present]


def _sentence(rng: np.random.Generator, patterns: Sequence[str], shown: Shown, label: str) -> Sentence:
    line = patterns[int(rng.integers(len(patterns)))].format(
        name=shown.name,
        Name=shown.name.capitalize(),
        a_name="a " * (shown.name in _COUNTED) + shown.name,
        size="" if shown.size_mm is None else f" of {shown.size_mm:.0f} mm",
        place=_place(shown),
    )
    return Sentence(text=line, label=label, finding=shown.name, offset=line.lower().index(shown.name))


def _place(shown: Shown) -> str:
    return f" on the {shown.side}" if shown.side else ""


def impression(present: Sequence[Shown]) -> str:
    """Return the abnormal findings alone, one short sentence each."""
    return " ".join(f"{shown.name.capitalize()}{_place(shown)}." for shown in present) or "No abnormality."


def question(rng: np.random.Generator, indication: str | None) -> str:
    """Return the words of a question, with the clinical indication in front where there is one."""
    stem = STEMS[int(rng.integers(len(STEMS)))]
    return stem if indication is None else f"Indication: {indication}. {stem}"
