"""What the report says about planted lesions, and about those that are not there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evidcore.case import Report, Span
from evidcore_plugin_phantoms.implant.planting import Lesion

ABSENT = ("No {name}.", "There is no {name}.", "{Name} is not seen.")
PRESENT = (
    "There is a {name} of {size} mm in the {place}.",
    "A {name} measuring {size} mm is seen in the {place}.",
    "{Name} of {size} mm in the {place}.",
)


def report(
    absent: Sequence[str], lesions: Sequence[Lesion], before: str, rng: np.random.Generator
) -> tuple[Report, dict[str, Span]]:
    """Return the report and where it speaks of each kind: first what is not there, then what is.

    Args:
        absent: kinds that were not planted.
        lesions: what was planted.
        before: text that the sentences follow; its own sentences get no spans.
        rng: picks the words.
    """
    lines = [(name, _line(ABSENT, rng, name), "normal") for name in absent]
    lines += [
        (each.kind, _line(PRESENT, rng, each.kind, f"{each.size_mm:.0f}", _place(each)), "abnormal")
        for each in lesions
    ]
    text, spans = before.rstrip(), {}
    for name, line, label in lines:
        start = len(text) + 1 if text else 0
        text = f"{text} {line}" if text else line
        spans[name] = Span(start=start, end=len(text), label=label)
    return Report(text=text, spans=tuple(spans.values())), spans


def _line(
    patterns: Sequence[str], rng: np.random.Generator, name: str, size: str = "", place: str = ""
) -> str:
    pattern = patterns[int(rng.integers(len(patterns)))]
    return pattern.format(name=name, Name=name.capitalize(), size=size, place=place)


def _place(lesion: Lesion) -> str:
    if lesion.region == "lung":
        return f"{lesion.side} lung" if lesion.side else "lung"
    region = "soft tissue" if lesion.region == "soft" else lesion.region.replace("_", " ")
    return f"{region} on the {lesion.side}" if lesion.side else region
