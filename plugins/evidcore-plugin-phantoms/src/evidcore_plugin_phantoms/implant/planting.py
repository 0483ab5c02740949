"""A lesion put into a scan: its edge as the scan would blur it, its inside with the scan's own noise.

With f the share of a voxel that the lesion fills, spread as the scan spreads a point, v the scan, m the
lesion's density and t noise like the surroundings', the voxel becomes

    (1 - f) v + f m + sqrt(1 - (1 - f)^2) t

so that the noise has the surroundings' strength inside, outside and across the edge.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from scipy import ndimage

from evidcore.case import Side
from evidcore.data import Volume
from evidcore.data.body import coarse, midline_mm, outline
from evidcore_plugin_phantoms.implant.noise import (
    TooLittleTissue,
    autocovariance,
    noise_like,
    point_spread_mm,
)
from evidcore_plugin_phantoms.implant.places import room_beside, room_mm, tissue_in_mask, tissue_of
from evidcore_plugin_phantoms.implant.shape import Box, Ellipsoid, box_around, draw, filled

Array = np.ndarray[Any, np.dtype[Any]]
Region = np.ndarray[Any, np.dtype[np.bool_]]
Tissue = Literal["lung", "soft"]
KindName = Literal["lung nodule", "hypodense lesion", "fluid collection", "stone"]

EDGE_MM = 2.0  # of a tissue, that does not count as its inside
MARGIN_MM = 2.0  # of the right tissue around a lesion
APART_MM = 10.0  # between two lesions
OFF_MIDLINE_MM = 10.0  # a lesion nearer to the midline has no side
SURROUNDINGS_MM = 12.0  # around a lesion: where density and noise are measured
FEWEST_VOXELS = 4  # of a mask; a smaller lesion could not be seen or pointed at
TRIES = 20
RANGE_HU = (-1024.0, 3071.0)
VESSEL_HU = -600.0  # above: vessels and walls, not the lung's own texture


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of lesion."""

    name: str  # the finding, and the mask
    tissue: Tissue
    size_mm: tuple[float, float]  # of the longest diameter
    hu: tuple[float, float]
    over_tissue: bool = False  # `hu` is the difference from the tissue around it


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(name="lung nodule", tissue="lung", size_mm=(6, 25), hu=(-50, 60)),  # solid; above 30 mm a mass
        Kind(name="hypodense lesion", tissue="soft", size_mm=(10, 30), hu=(-50, -25), over_tissue=True),
        Kind(name="fluid collection", tissue="soft", size_mm=(12, 35), hu=(-5, 15)),
        Kind(name="stone", tissue="soft", size_mm=(4, 12), hu=(300, 900)),
    )
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lesion:
    """What was planted."""

    kind: str
    region: str  # as the report calls it
    side: Side | None
    size_mm: float  # longest diameter
    volume_ml: float  # of the ellipsoid
    centre_zyx: tuple[float, float, float]  # in voxels
    hu: float  # of the lesion, partial volume and noise aside
    surroundings_hu: float
    noise_hu: float  # standard deviation, of the lesion as of its surroundings
    point_spread_mm: float  # standard deviation within a slice


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Planted:
    """A scan with lesions, their masks by kind, and what found no place, with the reason."""

    array: Array
    masks: Mapping[str, Region]
    lesions: tuple[Lesion, ...]
    no_place: Mapping[str, str]
    before: Mapping[str, tuple[Array, Array]]  # by kind: flat indices, and what is there without that lesion


@dataclasses.dataclass(frozen=True, kw_only=True)
class LesionSpec:
    """A lesion that is to be planted."""

    kind: Kind
    size_mm: tuple[float, float]
    region: str  # the name of the mask that it lies in; "" for the kind's tissue anywhere


def plant(
    volume: Volume,
    wishes: Sequence[LesionSpec],
    regions: Mapping[str, Region],
    *,
    contrast: float,
    rng: np.random.Generator,
) -> Planted:
    """Plant what is wished for, one lesion of each kind, none near another; the volume is not changed.

    `regions` are the masks (z, y, x) that wishes name.
    """
    site = _Site(volume)
    masks: dict[str, Region] = {}
    lesions: list[Lesion] = []
    no_place: dict[str, str] = {}
    for wish, own in zip(wishes, rng.spawn(len(wishes)), strict=True):
        result = site.plant(wish, regions.get(wish.region), contrast, own)
        if isinstance(result, str):
            no_place[wish.kind.name] = result
        else:
            lesion, masks[wish.kind.name] = result
            lesions.append(lesion)
    return Planted(
        array=site.finished(site.array),
        masks=masks,
        lesions=tuple(lesions),
        no_place=no_place,
        before={kind: site.before(kind) for kind in masks},
    )


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _Stroke:
    """What a lesion does to the voxels that it changes."""

    at: Array  # flat indices, rising
    kept: Array  # share of what was there
    added: Array  # HU

    def over(self, values: Array, part: Array | slice = slice(None)) -> Array:
        """Return the values, of some of the voxels, with the lesion over them."""
        return np.asarray(np.clip(self.kept[part] * values + self.added[part], *RANGE_HU))


class _Site:
    """A scan while lesions are planted."""

    def __init__(self, volume: Volume) -> None:
        self.volume = volume
        self.blocks = coarse(volume)
        self.array = volume.array.astype(np.float32)
        self.body = outline(self.blocks)
        self.middle_mm = midline_mm(volume, self.body)
        self.spread_mm, _ = point_spread_mm(volume)
        self.taken: list[Ellipsoid] = []
        self.strokes: dict[str, _Stroke] = {}
        self.rooms: dict[tuple[Tissue, str], Array] = {}
        spacing, fine = np.array(self.blocks.spacing_mm_zyx), np.array(volume.spacing_mm_zyx)
        self.first_block_mm = (spacing - fine) / 2  # its centre, from the first voxel's centre

    def finished(self, values: Array) -> Array:
        """Return values in the scan's own type."""
        return np.rint(values).astype(np.int16) if self.volume.array.dtype == np.int16 else values

    def before(self, kind: str) -> tuple[Array, Array]:
        """Return the flat indices of the voxels that a lesion changed, and their values without it."""
        at = self.strokes[kind].at
        values = self.volume.array.reshape(-1)[at].astype(np.float32)
        for other, stroke in self.strokes.items():
            if other != kind:
                _, here, there = np.intersect1d(at, stroke.at, assume_unique=True, return_indices=True)
                values[here] = stroke.over(values[here], there)
        return at, self.finished(values)

    def plant(
        self, wish: LesionSpec, mask: Region | None, contrast: float, rng: np.random.Generator
    ) -> tuple[Lesion, Region] | str:
        """Plant one lesion; return it with its mask, or why there is no place."""
        room = self._room(wish, mask)
        for other in self.taken:
            reach = float(other.radii_mm.max()) + APART_MM
            centre = other.centre_mm - self.first_block_mm
            room = room_beside(room, self.blocks.spacing_mm_zyx, centre, reach)
        inner = room > max(EDGE_MM, 3 * self.spread_mm)  # further out the tissue's edge would count as noise
        room = room - MARGIN_MM
        smallest, largest = wish.size_mm
        if 2 * room.max(initial=0.0) < smallest:
            return (
                f"no {wish.region or wish.kind.tissue + ' tissue'} holds a {wish.kind.name} of "
                f"{smallest:g} mm with {MARGIN_MM:g} mm around it"
            )
        why = ""
        for _ in range(TRIES):
            size_mm = rng.uniform(smallest, min(largest, 2 * float(room.max())))
            places = np.argwhere(2 * room >= size_mm)
            at = places[int(rng.integers(len(places)))] * np.array(self.blocks.spacing_mm_zyx)
            jitter = rng.uniform(-0.25, 0.25, 3) * np.array(self.blocks.spacing_mm_zyx)
            shape = draw(rng, at + jitter + self.first_block_mm, size_mm)
            result = self._put(shape, wish, inner, contrast, rng)
            if not isinstance(result, str):
                self.taken.append(shape)
                return result
            why = result
        return f"in {TRIES} tries, the last: {why}"

    def _room(self, wish: LesionSpec, mask: Region | None) -> Array:
        """Return how much room there is around each block for a lesion, in mm; 0 where it may not lie."""
        kind, key = wish.kind.tissue, (wish.kind.tissue, wish.region)
        if key not in self.rooms:
            if mask is None:
                tissue = tissue_of(kind, self.blocks, self.body)
            else:
                part = dataclasses.replace(self.volume, array=mask.astype(np.float32))
                tissue = tissue_in_mask(kind, self.blocks, coarse(part).array)
            self.rooms[key] = room_mm(tissue, self.blocks.spacing_mm_zyx)
        return self.rooms[key]

    def _put(
        self, shape: Ellipsoid, wish: LesionSpec, inner: Region, contrast: float, rng: np.random.Generator
    ) -> tuple[Lesion, Region] | str:
        spacing = self.volume.spacing_mm_zyx
        box = box_around(shape, self.volume.shape_zyx, spacing, max(MARGIN_MM, 4 * self.spread_mm))
        share = filled(shape, box, spacing)
        if (share > 0.5).sum() < FEWEST_VOXELS:
            return f"{int((share > 0.5).sum())} voxels are more than half filled, fewer than {FEWEST_VOXELS}"
        wide = box_around(shape, self.volume.shape_zyx, spacing, SURROUNDINGS_MM)
        values, around = self._surroundings(wide, inner, wish)
        try:
            covariance = autocovariance(values, around, spacing)
        except TooLittleTissue as cause:
            return str(cause)
        surroundings_hu = float(values[around].mean())
        density = float(rng.uniform(*wish.kind.hu)) + (surroundings_hu if wish.kind.over_tissue else 0.0)
        hu = surroundings_hu + contrast * (density - surroundings_hu)
        # blurred within slices as the scan does; along z a slice's own thickness has done so already
        sigma = (0, *(self.spread_mm / step for step in spacing[1:]))
        spread = np.clip(ndimage.gaussian_filter(share, sigma, mode="constant"), 0.0, 1.0)
        noise = noise_like(covariance, share.shape, rng)
        kept, changed = 1 - spread, spread > 0
        added = spread * hu + np.sqrt(1 - np.square(kept)) * noise
        index = np.arange(self.array.size).reshape(self.array.shape)[box][changed]
        stroke = _Stroke(at=index, kept=kept[changed], added=added[changed])
        self.strokes[wish.kind.name] = stroke
        self.array[box][changed] = stroke.over(self.array[box][changed])
        mask = np.zeros(self.volume.shape_zyx, bool)
        mask[box] = share > 0.5
        z, y, x = (float(at) for at in shape.centre_mm / np.array(spacing))
        left_mm = float(shape.centre_mm[2])  # x grows to the patient's left
        side: Side | None = None
        if self.middle_mm is not None and abs(left_mm - self.middle_mm) >= OFF_MIDLINE_MM:
            side = "left" if left_mm > self.middle_mm else "right"
        lesion = Lesion(
            kind=wish.kind.name,
            region=wish.region or wish.kind.tissue,
            side=side,
            size_mm=float(2 * shape.radii_mm.max()),
            volume_ml=shape.volume_ml,
            centre_zyx=(z, y, x),
            hu=float(hu),
            surroundings_hu=surroundings_hu,
            noise_hu=float(np.sqrt(covariance[tuple(extent // 2 for extent in covariance.shape)])),
            point_spread_mm=self.spread_mm,
        )
        return lesion, mask

    def _surroundings(self, box: Box, inner: Region, wish: LesionSpec) -> tuple[Array, Region]:
        """Return the scan in a box, and which of its voxels are of the tissue around."""
        values = self.volume.array[box].astype(np.float64)
        ratios = np.array(self.blocks.spacing_mm_zyx) / np.array(self.volume.spacing_mm_zyx)
        factors = np.rint(ratios).astype(int)
        places = [
            np.minimum(np.arange(part.start, part.stop) // factor, count - 1)
            for part, factor, count in zip(box, factors, inner.shape, strict=True)
        ]
        around = inner[np.ix_(*places)]
        return values, around & (values < VESSEL_HU) if wish.kind.tissue == "lung" else around
