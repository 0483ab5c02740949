"""What is true of a phantom, measured on its masks: what reports tell and queries ask."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from evidcore.case import Side
from evidcore_plugin_phantoms.abdomen.lesions import KINDS, Grown, longest_mm
from evidcore_plugin_phantoms.abdomen.scene import ORGANS, Grid, Scene, label_of
from evidcore_plugin_phantoms.shapes import Triple


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lesion:
    """One lesion; `mask` is its name among the case's masks."""

    mask: str
    finding: str
    organ: str
    side: Side | None  # of a kidney's lesions
    malignant: bool
    fluid: bool
    size_mm: float  # longest diameter in an axial slice
    volume_ml: float
    centre_mm: Triple  # z, y, x of the centroid, from the grid's middle, to superior, posterior, left


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    """The lesions of a phantom, and how large its organs are with them."""

    lesions: tuple[Lesion, ...]
    organs_ml: Mapping[str, float]
    mirrored: bool = False  # the liver is on the left

    def of(self, *organs: str) -> list[Lesion]:
        """Return the lesions of some organs."""
        return [lesion for lesion in self.lesions if lesion.organ in organs]

    def of_finding(self, finding: str) -> list[Lesion]:
        """Return the lesions of a kind."""
        return [lesion for lesion in self.lesions if lesion.finding == finding]

    def plain(self) -> dict[str, Any]:
        """Return the facts in JSON's types; `read` is the inverse."""
        return dataclasses.asdict(self)

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> Facts:
        """Read back what `plain` gave."""
        lesions = tuple(
            Lesion(**{**lesion, "centre_mm": tuple(lesion["centre_mm"])}) for lesion in plain["lesions"]
        )
        return cls(lesions=lesions, organs_ml=plain["organs_ml"], mirrored=plain["mirrored"])


def measure(scene: Scene, grown: Sequence[Grown], *, mirrored: bool = False) -> Facts:
    """Measure what was drawn.

    A finding's only lesion has its name ("liver cyst"), several are numbered in the order in which they were
    drawn, which says nothing of size or place ("liver cyst 1").
    """
    spacing = scene.grid.spacing_mm_zyx
    voxel_ml = float(np.prod(spacing)) / 1000
    together, numbers = Counter(each.finding for each in grown), Counter[str]()
    lesions = []
    for each in grown:
        kind = KINDS[each.finding]
        numbers[each.finding] += 1
        number = f" {numbers[each.finding]}" if together[each.finding] > 1 else ""
        at = [
            float(axis.reshape(-1)[part][index].mean())
            for axis, part, index in zip(scene.grid.axes_mm, each.box, np.nonzero(each.region), strict=True)
        ]
        lesions.append(
            Lesion(
                mask=each.finding + number,
                finding=each.finding,
                organ=each.organ,
                side=side_of(each.organ),
                malignant=kind.malignant,
                fluid=kind.fluid,
                size_mm=longest_mm(each.region, spacing),
                volume_ml=float(each.region.sum()) * voxel_ml,
                centre_mm=_from_middle(at, scene.grid),
            )
        )
    voxels = np.bincount(scene.organs.reshape(-1), minlength=len(ORGANS) + 1)
    return Facts(
        lesions=tuple(lesions),
        organs_ml={organ: float(voxels[label_of(organ)]) * voxel_ml for organ in ORGANS},
        mirrored=mirrored,
    )


def _from_middle(at: list[float], grid: Grid) -> Triple:
    z, y, x = ((place - middle) * grid.scale for place, middle in zip(at, grid.middle_mm, strict=True))
    return z, y, x


def side_of(organ: str) -> Side | None:
    """Return the side that an organ's name says."""
    word = organ.partition(" ")[0]
    return "left" if word == "left" else "right" if word == "right" else None
