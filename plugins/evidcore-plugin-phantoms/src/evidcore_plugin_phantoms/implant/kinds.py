"""What can be planted: where it grows, how dense and how large it is, and how a report calls it."""

from __future__ import annotations

import dataclasses
from typing import Literal

Tissue = Literal["lung", "soft"]
KindName = Literal["lung nodule", "hypodense lesion", "fluid collection", "stone"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of lesion. Its density is given in HU, or as the difference from the tissue around it."""

    name: str  # the finding, and the mask
    tissue: Tissue
    size_mm: tuple[float, float]  # of the longest diameter
    hu: tuple[float, float] | None = None
    difference_hu: tuple[float, float] | None = None


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(name="lung nodule", tissue="lung", size_mm=(6, 25), hu=(-50, 60)),  # solid; above 30 mm a mass
        Kind(name="hypodense lesion", tissue="soft", size_mm=(10, 30), difference_hu=(-50, -25)),
        Kind(name="fluid collection", tissue="soft", size_mm=(12, 35), hu=(-5, 15)),
        Kind(name="stone", tissue="soft", size_mm=(4, 12), hu=(300, 900)),
    )
}
