"""Queries about abdominal phantoms: what they can mean, and words for it.

None names an organ, and words alone do not tell left from right.
"""

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
    "organ", "both organs", "organ beside another", "organ with the lesion", "organ without a lesion",
    "larger organ", "smaller organ", "only lesion", "all lesions", "larger lesion", "smaller lesion",
    "upper lesion", "lower lesion", "malignant lesion", "benign lesion",
]  # fmt: skip
KINDS: tuple[QueryKind, ...] = get_args(QueryKind)
KIDNEYS = ("left kidney", "right kidney")
# The organs whose lesions are asked about; both kidneys count as one.
HOSTS: Mapping[str, tuple[str, ...]] = {
    host: KIDNEYS if host == "kidney" else (host,)
    for host in ("liver", "spleen", "kidney", "pancreas", "gallbladder")
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

    def kidney(kind: QueryKind, organ: str, told_by: str = "") -> Referent:
        side: Side = "left" if organ == KIDNEYS[0] else "right"
        return Referent(kind=kind, host="kidney", masks=(organ,), among=KIDNEYS, side=side, told_by=told_by)

    neighbours = ("liver", "spleen") if facts.mirrored else ("spleen", "liver")
    for organ, neighbour in zip(KIDNEYS, neighbours, strict=True):
        if facts.organs_ml[neighbour]:
            beside = kidney("organ beside another", organ, neighbour)
            yield dataclasses.replace(beside, among=(organ,), side=None)
    lesions = facts.of(*KIDNEYS)
    for word in ("cyst", "tumour"):
        ill = {each.organ for each in lesions if (each.fluid if word == "cyst" else each.malignant)}
        if len(ill) == 1:
            yield kidney("organ with the lesion", ill.pop(), word)
    healthy = set(KIDNEYS) - {lesion.organ for lesion in lesions}
    if len(healthy) == 1:
        yield kidney("organ without a lesion", healthy.pop())
    small, large = sorted(KIDNEYS, key=lambda organ: facts.organs_ml[organ])
    if facts.organs_ml[large] >= LARGER_KIDNEY * facts.organs_ml[small]:
        yield kidney("larger organ", large)
        yield kidney("smaller organ", small)


def _lesions(host: str, lesions: Sequence[Lesion]) -> Iterator[Referent]:
    """Yield the lesions of an organ together, or one of two by its size, height or nature."""
    names = tuple(lesion.mask for lesion in lesions)
    if lesions:
        kind: QueryKind = "only lesion" if len(lesions) == 1 else "all lesions"
        yield Referent(kind=kind, host=host, masks=names, among=names)
    if len(lesions) != 2:
        return
    small, large = sorted(lesions, key=lambda lesion: lesion.size_mm)
    lower, upper = sorted(lesions, key=lambda lesion: lesion.centre_mm[0])
    benign, malignant = sorted(lesions, key=lambda lesion: lesion.malignant)
    pairs: list[tuple[bool, QueryKind, Lesion, QueryKind, Lesion]] = [
        (large.size_mm >= LARGER_LESION * small.size_mm, "larger lesion", large, "smaller lesion", small),
        (upper.centre_mm[0] >= lower.centre_mm[0] + HIGHER_MM, "upper lesion", upper, "lower lesion", lower),
        (malignant.malignant > benign.malignant, "malignant lesion", malignant, "benign lesion", benign),
    ]
    for differ, first, item, second, other in pairs:
        for kind, meant, rest in ((first, item, other), (second, other, item)) if differ else ():
            side: Side = "left" if meant.centre_mm[2] > rest.centre_mm[2] else "right"
            among = tuple(sorted(names))
            yield Referent(kind=kind, host=host, masks=(meant.mask,), among=among, side=side)


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
    """
    result = []
    for facts, stream in zip(phantoms, streams, strict=True):
        by_kind: dict[str, list[Referent]] = {}
        for referent in referents(facts):
            if referent.kind in kinds:
                by_kind.setdefault(referent.kind, []).append(referent)
        order = [list(by_kind.values())[int(place)] for place in stream.permutation(len(by_kind))[:per_case]]
        result.append([some[int(stream.integers(len(some)))] for some in order])
    sided: dict[str, dict[str, list[tuple[int, Referent]]]] = defaultdict(lambda: {"left": [], "right": []})
    for number, wanted in enumerate(result):
        for referent in wanted:
            if referent.side is not None:
                sided[referent.kind][referent.side].append((number, referent))
    for groups in sided.values():
        fewer = min(len(group) for group in groups.values())
        for group in groups.values():
            for place in rng.permutation(len(group))[fewer:]:
                number, referent = group[int(place)]
                result[number].remove(referent)
    return result
