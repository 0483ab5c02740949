"""What queries can mean in an abdominal phantom, and which words leave it to the picture."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, get_args

from evidcore.case import Side
from evidcore_plugin_phantoms.abdomen.facts import Facts, Lesion

LARGER_KIDNEY = 1.15  # times the volume of the other
LARGER_LESION = 1.2  # times the longest diameter of the other
HIGHER_MM = 12.0  # between the centroids
QueryKind = Literal[
    "organ",
    "both organs",
    "organ beside another",
    "organ with the lesion",
    "organ without a lesion",
    "larger organ",
    "smaller organ",
    "only lesion",
    "all lesions",
    "larger lesion",
    "smaller lesion",
    "upper lesion",
    "lower lesion",
    "malignant lesion",
    "benign lesion",
]
KINDS: tuple[QueryKind, ...] = get_args(QueryKind)
KIDNEYS = ("left kidney", "right kidney")
# The organs whose lesions are asked about; both kidneys count as one.
HOSTS: Mapping[str, tuple[str, ...]] = {
    "liver": ("liver",),
    "spleen": ("spleen",),
    "kidney": KIDNEYS,
    "pancreas": ("pancreas",),
    "gallbladder": ("gallbladder",),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Referent:
    """Something that a query can mean.

    `kind` and `host` pick its words. Where the words leave two masks open, `side` is where the right one lies
    as seen from the other, in the body.
    """

    kind: QueryKind
    host: str  # an organ; "kidney" for either
    masks: tuple[str, ...]
    among: tuple[str, ...]
    side: Side | None = None
    told_by: str = ""  # by what a kidney is told from the other: its "cyst" or "tumour", or its neighbour


def referents(facts: Facts) -> Iterator[Referent]:
    """Yield everything that can be asked about a phantom."""
    for organ in ("liver", "spleen", "pancreas", "stomach", "gallbladder", "bladder", "aorta"):
        if facts.organs_ml[organ]:
            yield Referent(kind="organ", host=organ, masks=(organ,), among=(organ,))
    if all(facts.organs_ml[kidney] for kidney in KIDNEYS):
        yield Referent(kind="both organs", host="kidney", masks=KIDNEYS, among=KIDNEYS)
        yield from _kidneys(facts)
    for host, organs in HOSTS.items():
        yield from _lesions(host, facts.of(*organs))


def _kidneys(facts: Facts) -> Iterator[Referent]:
    """Yield one of the two kidneys: by its neighbour, its lesions, its size."""
    neighbours = ("liver", "spleen") if facts.mirrored else ("spleen", "liver")
    for kidney, neighbour in zip(KIDNEYS, neighbours, strict=True):
        if facts.organs_ml[neighbour]:
            yield Referent(
                kind="organ beside another",
                host="kidney",
                masks=(kidney,),
                among=(kidney,),
                told_by=neighbour,
            )
    lesions = facts.of(*KIDNEYS)
    for word, group in (
        ("cyst", [lesion for lesion in lesions if lesion.fluid]),
        ("tumour", [lesion for lesion in lesions if lesion.malignant]),
    ):
        ill = {lesion.organ for lesion in group}
        if len(ill) == 1:
            yield _kidney("organ with the lesion", ill.pop(), word)
    healthy = set(KIDNEYS) - {lesion.organ for lesion in lesions}
    if len(healthy) == 1:
        yield _kidney("organ without a lesion", healthy.pop())
    small, large = sorted(KIDNEYS, key=lambda kidney: facts.organs_ml[kidney])
    if facts.organs_ml[large] >= LARGER_KIDNEY * facts.organs_ml[small]:
        yield _kidney("larger organ", large)
        yield _kidney("smaller organ", small)


def _kidney(kind: QueryKind, organ: str, told_by: str = "") -> Referent:
    side: Side = "left" if organ == KIDNEYS[0] else "right"
    return Referent(kind=kind, host="kidney", masks=(organ,), among=KIDNEYS, side=side, told_by=told_by)


def _lesions(host: str, lesions: Sequence[Lesion]) -> Iterator[Referent]:
    names = tuple(lesion.mask for lesion in lesions)
    if len(lesions) == 1:
        yield Referent(kind="only lesion", host=host, masks=names, among=names)
    if len(lesions) > 1:
        yield Referent(kind="all lesions", host=host, masks=names, among=names)
    if len(lesions) != 2:
        return
    small, large = sorted(lesions, key=lambda lesion: lesion.size_mm)
    if large.size_mm >= LARGER_LESION * small.size_mm:
        yield _one_of_two("larger lesion", host, large, small)
        yield _one_of_two("smaller lesion", host, small, large)
    lower, upper = sorted(lesions, key=lambda lesion: lesion.centre_mm[0])
    if upper.centre_mm[0] >= lower.centre_mm[0] + HIGHER_MM:
        yield _one_of_two("upper lesion", host, upper, lower)
        yield _one_of_two("lower lesion", host, lower, upper)
    benign, malignant = sorted(lesions, key=lambda lesion: lesion.malignant)
    if malignant.malignant and not benign.malignant:
        yield _one_of_two("malignant lesion", host, malignant, benign)
        yield _one_of_two("benign lesion", host, benign, malignant)


def _one_of_two(kind: QueryKind, host: str, meant: Lesion, other: Lesion) -> Referent:
    return Referent(
        kind=kind,
        host=host,
        masks=(meant.mask,),
        among=tuple(sorted((meant.mask, other.mask))),
        side="left" if meant.centre_mm[2] > other.centre_mm[2] else "right",
    )
