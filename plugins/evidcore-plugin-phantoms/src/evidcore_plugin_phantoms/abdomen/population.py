"""Who the abdominal phantoms are: what each has and where, and how well a line of text predicts it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from evidcore_plugin_phantoms.abdomen.lesions import FINDINGS, KINDS, Wish
from evidcore_plugin_phantoms.priors import chances

# Hidden patient types. Every finding belongs to one, so that text predicts all findings equally well.
INDICATIONS: dict[str, tuple[str, ...]] = {
    "known colon cancer": ("liver metastasis", "splenic metastasis"),
    "blood in the urine": ("kidney tumour", "kidney cyst"),
    "jaundice": ("pancreatic tumour", "gallstone"),
    "earlier pancreatitis": ("pancreatic cyst", "splenic cyst"),
    "unclear ultrasound": ("liver cyst", "liver haemangioma"),
}
SECOND = 0.45  # share of findings of which there are two
CROWD = 2  # an organ that has so many lesions gets no second one of a kind


@dataclasses.dataclass(frozen=True, kw_only=True)
class Patient:
    """What a phantom is to have."""

    wishes: tuple[Wish, ...]
    kind: str  # its type, of INDICATIONS
    indication: str  # its type and the side of its pain


def draw_patient(rng: np.random.Generator, *, prevalence: float, prior_strength: float) -> Patient:
    """Draw a patient's type and side of pain, then findings given the type, then places given the side.

    The side says where lesions are: with probability 0.5 + 0.45 * `prior_strength` each finding of a kidney
    begins in the kidney of that side, and of the lesions of an organ the largest lies in the half of that
    side. The others lie in the other half.
    """
    kind = int(rng.integers(len(INDICATIONS)))
    outward = int(rng.choice([-1, 1]))
    table = chances(FINDINGS, INDICATIONS, prevalence=prevalence, prior_strength=prior_strength)
    present = rng.random(len(FINDINGS)) < table[kind]
    toward = 0.5 + 0.45 * prior_strength
    kidneys = np.where(rng.random(len(FINDINGS)) < toward, outward, -outward)
    second = rng.random((len(FINDINGS), 2))  # whether there is one, whether in the same kidney
    leans = {organ: outward if rng.random() < toward else -outward for organ in _organs()}
    sizes = rng.random((len(FINDINGS), 2))

    def wish(place: int, instance: int, turned: int) -> Wish:
        low, high = KINDS[FINDINGS[place]].diameter_mm
        return Wish(
            finding=FINDINGS[place],
            organ=_organ(FINDINGS[place], turned * int(kidneys[place])),
            diameter_mm=float(low + sizes[place, instance] * (high - low)),
        )

    wishes = [wish(int(place), 0, 1) for place in np.flatnonzero(present)]
    for place in np.flatnonzero(present & (second[:, 0] < SECOND)):
        other = wish(int(place), 1, 1 if second[place, 1] < 0.5 else -1)
        if sum(one.organ == other.organ for one in wishes) < CROWD:
            wishes.append(other)
    pain = "left" if outward == 1 else "right"
    own = tuple(INDICATIONS)[kind]
    return Patient(wishes=tuple(_leaning(wishes, leans)), kind=own, indication=f"{own}, pain on the {pain}")


def _leaning(wishes: list[Wish], leans: dict[str, int]) -> Iterator[Wish]:
    """Send the largest lesion of each organ into one half of it, the others into the other."""
    for wish in wishes:
        largest_mm = max(other.diameter_mm for other in wishes if other.organ == wish.organ)
        lean = leans[wish.organ] if wish.diameter_mm == largest_mm else -leans[wish.organ]
        yield dataclasses.replace(wish, lean=lean)


def _organ(finding: str, outward: int) -> str:
    organ = KINDS[finding].organ
    if organ != "kidney":
        return organ
    return "left kidney" if outward == 1 else "right kidney"


def _organs() -> list[str]:
    return list(dict.fromkeys(_organ(finding, outward) for finding in FINDINGS for outward in (-1, 1)))
