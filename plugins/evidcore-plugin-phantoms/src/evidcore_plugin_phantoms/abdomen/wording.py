"""The words of an abdominal phantom's report and impression."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evidcore_plugin_phantoms.abdomen.facts import Facts, Lesion
from evidcore_plugin_phantoms.abdomen.lesions import FINDINGS
from evidcore_plugin_phantoms.wording import Sentence

_HEALTHY = {
    "liver": ("The liver is of normal size.", "The liver has a smooth outline."),
    "spleen": ("The spleen is not enlarged.", "The spleen is normal."),
    "kidney": ("Both kidneys are of normal size.", "The renal pelvis is not dilated on either side."),
    "pancreas": ("The pancreatic duct is not dilated.", "The pancreas is of normal width."),
    "stomach": ("The stomach is partly filled.",),
    "bladder": ("The bladder has a thin wall.", "The bladder is well filled."),
    "aorta": ("The aorta is of normal width.",),
    "spine": ("No fracture of the spine.",),
}
_ABSENT = ("No {name}.", "There is no {name}.", "{Name} is not seen.")
_PRESENT = (
    "There is a {name} of {size} mm{place}, {nature}.",
    "{Name} of {size} mm is seen{place}, {nature}.",
    "{Name}{place}, {size} mm, {nature}.",
)


def sentences(rng: np.random.Generator, facts: Facts) -> list[Sentence]:
    """Return a report's sentences: what is normal first, then each lesion with organ, side, size and nature.

    Both parts are in the order of the vocabulary; lesions of one kind follow each other.
    """
    lines = [
        Sentence(text=texts[int(rng.integers(len(texts)))], label="normal")
        for texts in _HEALTHY.values()
        if rng.random() < 0.4
    ]
    for finding in FINDINGS:
        pattern = _ABSENT[int(rng.integers(len(_ABSENT)))]
        if not facts.of_finding(finding):
            text = pattern.format(name=finding, Name=finding.capitalize())
            lines.append(_naming(text, finding, "normal"))
    for finding in FINDINGS:
        for lesion in facts.of_finding(finding):
            pattern = _PRESENT[int(rng.integers(len(_PRESENT)))]
            text = pattern.format(
                name=finding,
                Name=finding.capitalize(),
                size=f"{lesion.size_mm:.0f}",
                place=_place(lesion),
                nature="malignant" if lesion.malignant else "benign",
            )
            lines.append(_naming(text, finding, "abnormal"))
    return lines


def _naming(text: str, finding: str, label: str) -> Sentence:
    return Sentence(text=text, label=label, finding=finding, offset=text.lower().index(finding))


def _place(lesion: Lesion) -> str:
    return f" on the {lesion.side}" if lesion.side else ""


def impression(lesions: Sequence[Lesion]) -> str:
    """Return the lesions alone, one short sentence for each kind and place."""
    told = dict.fromkeys(f"{lesion.finding.capitalize()}{_place(lesion)}." for lesion in lesions)
    return " ".join(told) or "No abnormality."
