"""Queries about abdominal phantoms: none names an organ, and words alone do not tell left from right."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Sequence

import numpy as np

from evidcore_plugin_phantoms.abdomen.facts import Facts
from evidcore_plugin_phantoms.abdomen.referents import QueryKind, Referent, referents

# What an organ does, in place of its name. The kidney's words are for one; _BOTH are those for two.
_ORGANS: dict[str, tuple[str, ...]] = {
    "liver": (
        "the organ that makes bile",
        "the largest gland of the body",
        "the organ that clears the blood coming from the gut",
    ),
    "spleen": (
        "the organ that breaks down old red blood cells",
        "the largest lymphatic organ",
        "the organ that filters blood but makes no urine",
    ),
    "kidney": (
        "the organ that filters the blood into urine",
        "the organ that makes urine",
        "the organ that balances water and salts",
    ),
    "pancreas": (
        "the gland that makes insulin",
        "the gland whose juice digests food in the duodenum",
        "the organ that fails in diabetes of the young",
    ),
    "stomach": (
        "the organ that food reaches first after the gullet",
        "the organ that churns food with acid",
    ),
    "gallbladder": ("the organ that stores bile", "the small sac that empties bile after a meal"),
    "bladder": ("the organ that holds urine", "the organ that empties when one passes water"),
    "aorta": (
        "the vessel that brings blood from the heart to the legs",
        "the largest artery of the body",
    ),
}
_BOTH = (
    "the two organs that filter the blood into urine",
    "the pair of organs that makes urine",
    "both organs that balance water and salts",
)
_PATTERNS: dict[QueryKind, tuple[str, ...]] = {
    "organ": ("{organ}",),
    "both organs": ("{both}",),
    "organ beside another": (
        "{organ}, on the side of {told_by}",
        "the one of {both} that lies below {told_by}",
    ),
    "organ with the lesion": (
        "{organ}, on the side with the {told_by}",
        "the one of {both} that has a {told_by}",
        "{organ}, where it holds a {told_by}",
    ),
    "organ without a lesion": (
        "{organ}, on the healthy side",
        "the one of {both} that has no lesion",
        "{organ}, where nothing is wrong with it",
    ),
    "larger organ": ("the larger one of {both}", "the one of {both} that takes up more room"),
    "smaller organ": ("the smaller one of {both}", "the one of {both} that takes up less room"),
    "only lesion": (
        "what should not be in {host}",
        "the lesion in {host}",
        "the abnormality of {host}",
    ),
    "all lesions": (
        "everything that should not be in {host}",
        "all lesions in {host}",
        "every abnormality of {host}",
    ),
    "larger lesion": (
        "the larger of the two lesions in {host}",
        "the bigger one of the two abnormalities of {host}",
    ),
    "smaller lesion": (
        "the smaller of the two lesions in {host}",
        "the lesser one of the two abnormalities of {host}",
    ),
    "upper lesion": (
        "the upper of the two lesions in {host}",
        "the one of the two abnormalities of {host} that lies nearer to the head",
    ),
    "lower lesion": (
        "the lower of the two lesions in {host}",
        "the one of the two abnormalities of {host} that lies nearer to the feet",
    ),
    "malignant lesion": (
        "the malignant one of the two lesions in {host}",
        "the cancerous one of the two abnormalities of {host}",
    ),
    "benign lesion": (
        "the benign one of the two lesions in {host}",
        "the harmless one of the two abnormalities of {host}",
    ),
}
_LESIONS = {
    "cyst": ("cyst", "pocket of fluid", "fluid-filled lesion"),
    "tumour": ("tumour", "solid growth", "cancer"),
}
_FRAMES = ("Show {it}.", "Outline {it}.", "Segment {it}.", "{It}.")


def text_of(referent: Referent, rng: np.random.Generator, indication: str | None) -> str:
    """Return one way to ask for a referent, with the clinical indication in front where there is one."""

    def one_of(words: Sequence[str]) -> str:
        return words[int(rng.integers(len(words)))]

    slots = {
        "organ": _ORGANS[referent.host],
        "both": _BOTH,
        "host": _BOTH if referent.host == "kidney" else _ORGANS[referent.host],
        "told_by": _LESIONS.get(referent.told_by) or _ORGANS.get(referent.told_by, ()),
    }
    phrase = re.sub(r"\{(\w+)\}", lambda slot: one_of(slots[slot[1]]), one_of(_PATTERNS[referent.kind]))
    text = one_of(_FRAMES).format(it=phrase, It=phrase[0].upper() + phrase[1:])
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
