"""Queries about abdominal phantoms: what they can mean, and words for it.

None names an organ, and words alone do not tell left from right.
"""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Literal, get_args

import numpy as np

from evidcore.case import Side
from evidcore_plugin_phantoms.abdomen.lesions import Facts, Lesion
from evidcore_plugin_phantoms.abdomen.scene import TABLES
from evidcore_plugin_phantoms.wording import one_of

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


def text_of(referent: Referent, rng: np.random.Generator, indication: str | None) -> str:
    """Return one way to ask for a referent, with the clinical indication in front where there is one."""
    described = TABLES["described"]
    slots = {
        "organ": described[referent.host],
        "both": TABLES["both"],
        "host": TABLES["both"] if referent.host == "kidney" else described[referent.host],
        "told_by": {**described, **TABLES["described_lesions"]}.get(referent.told_by, ()),
    }
    pattern = one_of(rng, TABLES["patterns"][referent.kind])
    phrase = re.sub(r"\{(\w+)\}", lambda slot: one_of(rng, slots[slot[1]]), pattern)
    text = one_of(rng, TABLES["frames"]).format(it=phrase, It=phrase[0].upper() + phrase[1:])
    return text if indication is None else f"Indication: {indication}. {text}"


def chosen(
    phantoms: Sequence[Facts],
    kinds: Collection[QueryKind],
    per_case: int,
    streams: Sequence[np.random.Generator],
    rng: np.random.Generator,
) -> list[list[Referent]]:
    """Choose what is asked about each phantom of a split.

    A phantom is asked about at most one referent of a kind. Of each kind whose words leave two masks open the
    one on the left is meant as often as the one on the right; what is too many of one side is dropped.

    Args:
        phantoms: the split.
        kinds: of referents that are asked about.
        per_case: most referents of a phantom.
        streams: each phantom's own.
        rng: decides what is dropped.
    """
    found = [_drawn(facts, kinds, per_case, stream) for facts, stream in zip(phantoms, streams, strict=True)]
    sided: dict[str, dict[str, list[tuple[int, Referent]]]] = defaultdict(lambda: {"left": [], "right": []})
    for number, wanted in enumerate(found):
        for referent in wanted:
            if referent.side is not None:
                sided[referent.kind][referent.side].append((number, referent))
    for groups in sided.values():
        fewer = min(len(group) for group in groups.values())
        for group in groups.values():
            for place in rng.permutation(len(group))[fewer:]:
                number, referent = group[int(place)]
                found[number].remove(referent)
    return found


def _drawn(
    facts: Facts, kinds: Collection[QueryKind], per_case: int, rng: np.random.Generator
) -> list[Referent]:
    by_kind: dict[QueryKind, list[Referent]] = {}
    for referent in referents(facts):
        if referent.kind in kinds:
            by_kind.setdefault(referent.kind, []).append(referent)
    order = [list(by_kind)[int(place)] for place in rng.permutation(len(by_kind))[:per_case]]
    return [by_kind[kind][int(rng.integers(len(by_kind[kind])))] for kind in order]
