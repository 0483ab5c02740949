"""Queries of KiTS23 that name no object: which kidney, tumour or cyst a text means, by MedVol-R1's rules.

The texts are the authors' file `data_preparation/kits23/template.json`, ten for each of 14 templates; it is
read, not shipped. Of the 14 the authors use ten, and so does this. Each is asked once a case at most:

- a kidney, where it alone has a tumour, a cyst or both, or where it alone has none;
- the only tumour or cyst of the case; else the only one of a kidney; else the largest of a kidney, where no
  other is as large.

Differences from the released code: the right kidney is the one that lies on the right, not the first one; of
a single kidney, by the middle of the scan. A lesion that meets no kidney belongs to the nearer one in mm.
"""

import dataclasses
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evidcore.api import Cache, DataError, MaskRef, VolumeRef, read
from evidcore.cache import plain_file
from evidcore.case import Query
from evidcore.data import content_hash

LESIONS = ("tumor", "cyst")
TEMPLATES = (
    "kidney_only_with_tumor", "kidney_only_with_cyst", "kidney_only_with_both_tumor_and_cyst",
    "kidney_only_healthy",
    "tumor_only_global", "tumor_only_in_kidney", "tumor_largest_in_kidney",
    "cyst_only_global", "cyst_only_in_kidney", "cyst_largest_in_kidney",
)  # fmt: skip
SIDE = "{kidney_side}"
Texts = Mapping[str, Sequence[str]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Thing:
    """A kidney, a tumour or a cyst."""

    name: str  # of its mask, as "tumor 2"
    voxels: int
    kidney: str  # whose it is; a kidney's own name
    side: str  # of that kidney

    @property
    def kind(self) -> str:
        """Return what it is, without its number."""
        return self.name.partition(" ")[0]


def read_texts(path: Path) -> dict[str, tuple[str, ...]]:
    """Read the texts of each template.

    Raises:
        DataError: if the file cannot be used; names it and the template.
    """
    try:
        table: Any = json.loads(plain_file(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as cause:
        why = f"cannot be read as JSON ({cause})"
        raise DataError(f"{path}: {why}. Give queries = 'FILE', MedVol-R1's template.json.") from cause
    for name in TEMPLATES:
        texts = table.get(name) if isinstance(table, dict) else None
        if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
            why = f"template {name!r} must have a list of texts, got {json.dumps(texts)[:60]}"
            raise DataError(f"{path}: {why}. Take MedVol-R1's template.json as it is.")
    return {name: tuple(table[name]) for name in TEMPLATES}


def queries(case_id: str, things: Sequence[Thing], texts: Texts) -> tuple[Query, ...]:
    """Return what is asked about a case; each text is drawn by case and template."""
    kidneys = tuple(item.name for item in things if item.kind == "kidney")
    result = []
    for template, thing in meant(things).items():
        text = random.Random(f"kits23/{case_id}/{template}").choice(texts[template])
        among = kidneys if thing.kind == "kidney" and len(kidneys) > 1 else ()
        result.append(
            Query(
                id=template,
                text=text.replace(SIDE, f"the {thing.side} kidney"),
                masks=(thing.name,),
                among=among,
                kind=template.replace("_", " "),
            )
        )
    return tuple(result)


def meant(things: Sequence[Thing]) -> dict[str, Thing]:
    """Return what each template means that holds in a case, in the order of `TEMPLATES`."""
    kidneys = [item for item in things if item.kind == "kidney"]
    kinds = {item.name: {other.kind for other in things if other.kidney == item.name} for item in kidneys}
    result: dict[str, Thing] = {}
    for template, has in (
        ("kidney_only_with_tumor", lambda present: "tumor" in present),
        ("kidney_only_with_cyst", lambda present: "cyst" in present),
        ("kidney_only_with_both_tumor_and_cyst", lambda present: set(LESIONS) <= present),
        ("kidney_only_healthy", lambda present: not present & set(LESIONS)),
    ):
        some = [item for item in kidneys if has(kinds[item.name])]
        if len(some) == 1:
            result[template] = some[0]
    for kind in LESIONS:
        lesions = [item for item in things if item.kind == kind]
        for item in lesions:
            others = [other for other in lesions if other.kidney == item.kidney and other != item]
            if len(lesions) == 1:
                result[f"{kind}_only_global"] = item
            elif not others:
                result.setdefault(f"{kind}_only_in_kidney", item)
            elif item.voxels > max(other.voxels for other in others):
                result.setdefault(f"{kind}_largest_in_kidney", item)
    return {template: result[template] for template in TEMPLATES if template in result}


def things_of(masks: Mapping[str, MaskRef], cache_folder: Path) -> list[Thing]:
    """Measure the kidneys and lesions of a case, once for each state of their files.

    Returns:
        Those that have a voxel; nothing where no kidney has one, for nobody is told whose a lesion is.
    """
    asked = [[name, content_hash(ref.path)] for name, ref in masks.items()]
    cache = Cache("kits23-objects", cache_folder)
    result = cache.get_or_make(asked, lambda: [dataclasses.asdict(item) for item in _measured(masks)])
    return [Thing(**item) for item in result]


def _measured(masks: Mapping[str, MaskRef]) -> list[Thing]:
    places: dict[str, np.ndarray[Any, Any]] = {}  # of each voxel, in the flattened scan
    middles: dict[str, np.ndarray[Any, Any]] = {}  # z, y, x
    step_mm, width = (1.0, 1.0, 1.0), 0
    for name, ref in masks.items():
        drawn = read(VolumeRef(path=ref.path, intensity="arbitrary"))
        step_mm, width = drawn.spacing_mm_zyx, drawn.shape_zyx[2]
        voxels = np.flatnonzero(drawn.array > 0)
        if len(voxels):
            places[name] = voxels
            middles[name] = np.mean(np.unravel_index(voxels, drawn.shape_zyx), axis=1)
    kidneys = [name for name in places if name.startswith("kidney")]
    if not kidneys:
        return []
    xs = [middles[name][2] for name in kidneys]
    middle = sum(xs) / len(xs) if len(xs) > 1 else (width - 1) / 2
    sides = {name: "right" if x < middle else "left" for name, x in zip(kidneys, xs, strict=True)}

    def nearness(name: str, kidney: str) -> tuple[int, float]:
        shared = np.intersect1d(places[name], places[kidney], assume_unique=True)
        return len(shared), -float(np.linalg.norm((middles[kidney] - middles[name]) * step_mm))

    def kidney_of(name: str) -> str:
        return max(kidneys, key=lambda item: nearness(name, item))

    owners = {name: name if name in sides else kidney_of(name) for name in places}
    return [
        Thing(name=name, voxels=len(places[name]), kidney=owner, side=sides[owner])
        for name, owner in owners.items()
    ]
