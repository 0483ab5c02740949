"""A lesion put into a scan: its edge as the scan would blur it, its inside with the scan's own noise.

With f the share of a voxel that the lesion fills, spread as the scan spreads a point, v the scan, m the
lesion's density and t noise like the surroundings', the voxel becomes

    (1 - f) v + f m + sqrt(1 - (1 - f)^2) t

so that the noise has the surroundings' strength inside, outside and across the edge.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from scipy import ndimage

from evidcore.case import Side
from evidcore.data import Volume
from evidcore.data.body import coarse, midline_mm, outline
from evidcore_plugin_phantoms.implant.tissue import (
    Array,
    NoPlace,
    Region,
    Tissue,
    autocovariance,
    noise_like,
    point_spread_mm,
    room_beside,
    room_mm,
    tissue_in_mask,
    tissue_of,
)

Box = tuple[slice, slice, slice]
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
FINEST_SHARE = 1 / 12  # of the shortest radius: a sample lies this near to the next
MOST_SAMPLES = 24  # along one axis of a voxel


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class LesionSpec:
    """A lesion that is to be planted."""

    kind: Kind
    region: str  # the name of the mask that it lies in; "" for the kind's tissue anywhere


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Stroke:
    """What a lesion does to the voxels that it changes."""

    at: Array  # flat indices, rising
    kept: Array  # share of what was there
    added: Array  # HU

    def over(self, values: Array, part: Array | slice = slice(None)) -> Array:
        """Return the values, of some of the voxels, with the lesion over them."""
        return np.asarray(np.clip(self.kept[part] * values + self.added[part], *RANGE_HU))


class Site:
    """A scan and the lesions that are planted into it, one of each kind, none near another.

    `volume` is not changed; `array` is, in HU.
    """

    def __init__(self, volume: Volume) -> None:
        self.volume = volume
        self.array = volume.array.astype(np.float32)
        self.lesions: list[Lesion] = []
        self.masks: dict[str, Region] = {}  # by kind
        self.no_place: dict[str, str] = {}  # by kind, with the reason
        self._blocks = coarse(volume)
        self._body = outline(self._blocks)
        self._middle_mm = midline_mm(volume, self._body)
        self._spread_mm = point_spread_mm(volume)
        self._taken: list[Ellipsoid] = []
        self._strokes: dict[str, Stroke] = {}
        self._rooms: dict[tuple[Tissue, str], Array] = {}
        spacing, fine = np.array(self._blocks.spacing_mm_zyx), np.array(volume.spacing_mm_zyx)
        self._first_block_mm = (spacing - fine) / 2  # its centre, from the first voxel's centre

    def plant(
        self,
        wishes: Sequence[LesionSpec],
        regions: Mapping[str, Region],
        contrast: float,
        rng: np.random.Generator,
    ) -> None:
        """Plant what is wished for; `regions` are the masks (z, y, x) that wishes name."""
        for wish, own in zip(wishes, rng.spawn(len(wishes)), strict=True):
            try:
                self._plant(wish, regions.get(wish.region), contrast, own)
            except NoPlace as cause:
                self.no_place[wish.kind.name] = str(cause)

    def finished(self, values: Array) -> Array:
        """Return values in the scan's own type."""
        return np.rint(values).astype(np.int16) if self.volume.array.dtype == np.int16 else values

    def before(self, kind: str) -> tuple[Array, Array]:
        """Return the flat indices of the voxels that a lesion changed, and their values without it."""
        at = self._strokes[kind].at
        values = self.volume.array.reshape(-1)[at].astype(np.float32)
        for other, stroke in self._strokes.items():
            if other != kind:
                _, here, there = np.intersect1d(at, stroke.at, assume_unique=True, return_indices=True)
                values[here] = stroke.over(values[here], there)
        return at, self.finished(values)

    def _plant(
        self, wish: LesionSpec, mask: Region | None, contrast: float, rng: np.random.Generator
    ) -> None:
        tissue, name = wish.kind.tissue, wish.region
        if (tissue, name) not in self._rooms:
            if mask is None:
                region = tissue_of(tissue, self._blocks, self._body)
            else:
                part = dataclasses.replace(self.volume, array=mask.astype(np.float32))
                region = tissue_in_mask(tissue, self._blocks, coarse(part).array)
            self._rooms[tissue, name] = room_mm(region, self._blocks.spacing_mm_zyx)
        room = self._rooms[tissue, name]  # around each block for a lesion; 0 where it may not lie
        spacing = np.array(self._blocks.spacing_mm_zyx)
        for other in self._taken:
            reach = float(other.radii_mm.max()) + APART_MM
            centre = other.centre_mm - self._first_block_mm
            room = room_beside(room, self._blocks.spacing_mm_zyx, centre, reach)
        # further out the tissue's edge would count as noise
        inner = room > max(EDGE_MM, 3 * self._spread_mm)
        room = room - MARGIN_MM
        smallest, largest = wish.kind.size_mm
        if 2 * room.max(initial=0.0) < smallest:
            where = wish.region or f"{wish.kind.tissue} tissue"
            lesion = f"a {wish.kind.name} of {smallest:g} mm"
            raise NoPlace(f"no {where} holds {lesion} with {MARGIN_MM:g} mm around it")
        for tries in range(1, TRIES + 1):
            size_mm = rng.uniform(smallest, min(largest, 2 * float(room.max())))
            places = np.argwhere(2 * room >= size_mm)
            at = places[int(rng.integers(len(places)))] * spacing
            jitter = rng.uniform(-0.25, 0.25, 3) * spacing
            shape = draw(rng, at + jitter + self._first_block_mm, size_mm)
            try:
                self._put(shape, wish, inner, contrast, rng)
            except NoPlace as cause:
                if tries == TRIES:
                    raise NoPlace(f"in {TRIES} tries, the last: {cause}") from cause
            else:
                self._taken.append(shape)
                return

    def _put(
        self, shape: Ellipsoid, wish: LesionSpec, inner: Region, contrast: float, rng: np.random.Generator
    ) -> None:
        """Draw a lesion, unless it would show in too few voxels or the tissue around is too little."""
        spacing = self.volume.spacing_mm_zyx
        box = box_around(shape, self.volume.shape_zyx, spacing, max(MARGIN_MM, 4 * self._spread_mm))
        share = filled(shape, box, spacing)
        count = int((share > 0.5).sum())
        if count < FEWEST_VOXELS:
            raise NoPlace(f"{count} voxels are more than half filled, fewer than {FEWEST_VOXELS}")
        wide = box_around(shape, self.volume.shape_zyx, spacing, SURROUNDINGS_MM)
        values, around = self._surroundings(wide, inner, wish)
        covariance = autocovariance(values, around, spacing)
        surroundings_hu = float(values[around].mean())
        density = float(rng.uniform(*wish.kind.hu)) + (surroundings_hu if wish.kind.over_tissue else 0.0)
        hu = surroundings_hu + contrast * (density - surroundings_hu)
        # blurred within slices as the scan does; along z a slice's own thickness has done so already
        sigma = (0, *(self._spread_mm / step for step in spacing[1:]))
        spread = np.clip(ndimage.gaussian_filter(share, sigma, mode="constant"), 0.0, 1.0)
        noise = noise_like(covariance, share.shape, rng)
        kept, changed = 1 - spread, spread > 0
        added = spread * hu + np.sqrt(1 - np.square(kept)) * noise
        index = np.arange(self.array.size).reshape(self.array.shape)[box][changed]
        stroke = self._strokes[wish.kind.name] = Stroke(at=index, kept=kept[changed], added=added[changed])
        self.array[box][changed] = stroke.over(self.array[box][changed])
        mask = np.zeros(self.volume.shape_zyx, bool)
        mask[box] = share > 0.5
        z, y, x = (float(at) for at in shape.centre_mm / np.array(spacing))
        left_mm = float(shape.centre_mm[2])  # x grows to the patient's left
        side: Side | None = None
        if self._middle_mm is not None and abs(left_mm - self._middle_mm) >= OFF_MIDLINE_MM:
            side = "left" if left_mm > self._middle_mm else "right"
        self.masks[wish.kind.name] = mask
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
            point_spread_mm=self._spread_mm,
        )
        self.lesions.append(lesion)

    def _surroundings(self, box: Box, inner: Region, wish: LesionSpec) -> tuple[Array, Region]:
        """Return the scan in a box, and which of its voxels are of the tissue around."""
        values = self.volume.array[box].astype(np.float64)
        ratios = np.array(self._blocks.spacing_mm_zyx) / np.array(self.volume.spacing_mm_zyx)
        factors = np.rint(ratios).astype(int)
        places = [
            np.minimum(np.arange(part.start, part.stop) // factor, count - 1)
            for part, factor, count in zip(box, factors, inner.shape, strict=True)
        ]
        around = inner[np.ix_(*places)]
        return values, around & (values < VESSEL_HU) if wish.kind.tissue == "lung" else around


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Ellipsoid:
    """Where a lesion lies and how it is turned; all in mm along z, y, x from the first voxel's centre."""

    centre_mm: Array
    radii_mm: Array
    axes: Array  # (3, 3), each column the direction of one radius

    @property
    def volume_ml(self) -> float:
        """Return 4/3 pi abc."""
        return float(4 / 3 * np.pi * np.prod(self.radii_mm) / 1000)

    def reach_mm(self) -> Array:
        """Return how far it reaches from its centre along z, y and x."""
        return np.asarray(np.sqrt(np.square(self.axes * self.radii_mm).sum(axis=1)))

    def depth(self, points_mm: Array) -> Array:
        """Return how far out each point lies, last axis z, y, x: 0 at the centre, 1 on the surface."""
        inward = (points_mm - self.centre_mm) @ (self.axes / self.radii_mm)
        return np.asarray(np.sqrt(np.square(inward).sum(axis=-1)))


def draw(rng: np.random.Generator, centre_mm: Array, size_mm: float) -> Ellipsoid:
    """Draw an ellipsoid of the given longest diameter, the others 75 to 100 % of it, turned at random."""
    radii = size_mm / 2 * np.array([1.0, *rng.uniform(0.75, 1.0, 2)])
    axes, triangle = np.linalg.qr(rng.standard_normal((3, 3)))
    return Ellipsoid(centre_mm=centre_mm, radii_mm=radii, axes=axes * np.sign(np.diag(triangle)))


def box_around(
    shape: Ellipsoid,
    size_zyx: tuple[int, int, int],
    spacing_mm_zyx: tuple[float, float, float],
    rim_mm: float,
) -> Box:
    """Return the voxels within `rim_mm` of an ellipsoid, cut at the grid's edges."""
    spacing = np.array(spacing_mm_zyx)
    low = np.floor((shape.centre_mm - shape.reach_mm() - rim_mm) / spacing).astype(int)
    high = np.ceil((shape.centre_mm + shape.reach_mm() + rim_mm) / spacing).astype(int) + 1
    (z0, y0, x0), (z1, y1, x1) = np.maximum(low, 0), np.minimum(high, size_zyx)
    return slice(int(z0), int(z1)), slice(int(y0), int(y1)), slice(int(x0), int(x1))


def filled(shape: Ellipsoid, box: Box, spacing_mm_zyx: tuple[float, float, float]) -> Array:
    """Return which share of each voxel of `box` (z, y, x) lies inside, 0..1, by sampling within voxels."""
    steps = np.array(spacing_mm_zyx)
    places = [np.arange(part.start, part.stop) * step for part, step in zip(box, steps, strict=True)]
    centres = np.stack(np.meshgrid(*places, indexing="ij"), axis=-1)
    # in units of the radii a voxel reaches at most this far from its centre
    reach = np.sqrt(np.square(steps).sum()) / 2 / shape.radii_mm.min()
    depth = shape.depth(centres)
    share = (depth < 1).astype(np.float64)
    edge = np.abs(depth - 1) <= reach
    finest = shape.radii_mm.min() * FINEST_SHARE
    counts = np.clip(np.ceil(steps / finest), 6, MOST_SAMPLES).astype(int)
    offsets = [
        ((np.arange(count) + 0.5) / count - 0.5) * step for count, step in zip(counts, steps, strict=True)
    ]
    within = np.stack(np.meshgrid(*offsets, indexing="ij"), axis=-1).reshape(-1, 3)
    on_edge = centres[edge]
    few = max(1, 2_000_000 // len(within))  # voxels at a time, for memory
    parts = [
        (shape.depth(on_edge[first : first + few, None] + within) < 1).mean(axis=1)
        for first in range(0, len(on_edge), few)
    ]
    share[edge] = np.concatenate([np.zeros(0), *parts])
    return share
