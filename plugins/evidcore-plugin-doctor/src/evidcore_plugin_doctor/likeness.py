"""Which volumes are copies of each other: another crop, resampling, rescaling or noise over the same scan.

Each volume leaves a fingerprint: its structure of 6 to 12 mm, and where that is strongest, the surroundings
as short vectors. Vectors that agree between two volumes vote for a shift; the structures are then laid over
each other at that shift and correlated, as a whole and in blocks of 40 mm: two bodies of one build agree in
their outlines, copies agree everywhere.

Source:
    The way from keypoints to a vote follows Lowe 2004, Distinctive image features from scale-invariant
    keypoints, IJCV 60, sections 3, 5 and 7, without rotation and scale.
"""

from __future__ import annotations

import collections
import dataclasses
import tempfile
from collections.abc import Iterator
from typing import IO, Any

import numpy as np
from scipy import fft, ndimage, spatial

from evidcore.case import Intensity
from evidcore_plugin_doctor.coarse import STEP_MM, Coarse, interpolate

POINTS = 40  # at most, of a volume
SIGMAS = (1.2, 2.4)  # in cubes: 6 and 12 mm
PATCH = 5  # samples along each axis
PATCH_STEP = 1.5  # cubes between samples
LOWPASS = 3  # cosines kept along each axis
NEAREST = 8  # vectors of others that a vector is compared with
CLOSE = 0.5  # between unit vectors
SHIFT_MM = 8.0  # votes this close are for the same shift
VOTES = 4
AGREEMENT = 0.9  # of the whole
EVERYWHERE = 0.88  # of nine tenths of the blocks; copies reach 0.93, phantoms of one build 0.84
BLOCK = 8  # cubes
STRUCTURED = 25  # of 127: blocks with less hold mostly noise
OVERLAP = 0.5  # of the smaller volume
WEAK = 0.02  # of the clipped range: 32 HU
CLIP_HU = (-1000.0, 600.0)
CLIP_PERCENTILES = (0.5, 99.5)

Array = np.ndarray[Any, np.dtype[np.float32]]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Fingerprint:
    """What a volume is recognised by."""

    structure: np.ndarray[Any, np.dtype[np.int8]]  # (z, y, x), cubes of STEP_MM
    places: Array  # (point, 3): z, y, x in cubes
    vectors: Array  # (point, number), each of length 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Likeness:
    """Two volumes that show the same scan."""

    first: int
    second: int
    agreement: float  # correlation of the structures, up to 1
    overlap: float  # of the smaller volume
    shift_mm: tuple[float, float, float]  # from a place in the first to the same one in the second, z, y, x


def fingerprint(coarse: Coarse, intensity: Intensity) -> Fingerprint | None:
    """Return the fingerprint, None where the volume shows too little structure for one."""
    values = coarse.values
    low, high = CLIP_HU if intensity == "hu" else np.percentile(values, CLIP_PERCENTILES)
    if not low < high:
        return None
    scaled: Array = ((np.clip(values, low, high) - low) / (high - low)).astype(np.float32)
    fine, rough = (ndimage.gaussian_filter(scaled, sigma, mode="nearest", truncate=3.0) for sigma in SIGMAS)
    band = fine - rough
    places = _strongest(band)
    if len(places) < VOTES:
        return None
    # every body has an outline: beyond WEAK the height of an edge no longer counts, only where it lies
    structure = np.round(127 * np.tanh(band / WEAK)).astype(np.int8)
    return Fingerprint(structure=structure, places=places, vectors=_vectors(fine, places))


def _strongest(band: Array) -> Array:
    """Return where the structure is strongest, to a fraction of a cube, away from the volume's ends."""
    margin = int(np.ceil(PATCH_STEP * (PATCH - 1) / 2)) + 1
    if min(band.shape) <= 2 * margin:
        return np.zeros((0, 3), np.float32)
    strength = np.abs(band)
    peaks = strength == ndimage.maximum_filter(strength, 3)
    inner = np.zeros_like(peaks)
    core = (slice(margin, -margin),) * 3
    inner[core] = peaks[core] & (strength[core] > 0.02)
    found = np.argwhere(inner)
    order = np.argsort(-strength[tuple(found.T)], kind="stable")[:POINTS]
    found = found[order]
    offsets = []
    for axis in range(3):
        step = np.eye(3, dtype=np.intp)[axis]
        before, at, after = (strength[tuple((found + shift * step).T)] for shift in (-1, 0, 1))
        bend = before - 2 * at + after
        bent = np.where(bend < -1e-9, bend, -1.0)
        offsets.append(np.clip((before - after) / (2 * bent), -0.5, 0.5))  # top of a parabola
    return np.asarray(found + np.stack(offsets, axis=1), dtype=np.float32)


def _vectors(fine: Array, places: Array) -> Array:
    """Describe the surroundings of each place, free of brightness and contrast."""
    steps = (np.arange(PATCH) - (PATCH - 1) / 2) * PATCH_STEP
    offsets = np.stack(np.meshgrid(steps, steps, steps, indexing="ij"))  # (3, z, y, x)
    points = places.T[:, :, None, None, None] + offsets[:, None]
    patches = ndimage.map_coordinates(fine, points, order=1, mode="nearest")
    waves = fft.dctn(patches, axes=(1, 2, 3), norm="ortho")[:, :LOWPASS, :LOWPASS, :LOWPASS]
    flat = waves.reshape(len(places), -1)[:, 1:]  # without the mean
    length = np.linalg.norm(flat, axis=1, keepdims=True)
    return np.asarray(flat / np.maximum(length, 1e-6), dtype=np.float32)


class Library:
    """The fingerprints of a data set; structures lie in a file, so that a large set fits into memory."""

    def __init__(self) -> None:
        """Open the file; it vanishes with the library."""
        self._file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the library
        self._at: list[tuple[int, tuple[int, ...]] | None] = []
        self._places: list[Array] = []
        self._vectors: list[Array] = []
        self._owners: list[int] = []  # of each place in the two lists above

    def __enter__(self) -> Library:
        """Return the library."""
        return self

    def __exit__(self, *error: object) -> None:
        """Delete the file."""
        self._file.close()

    def add(self, found: Fingerprint | None) -> int:
        """Keep a volume's fingerprint and return its number; one without structure is like no other."""
        number = len(self._at)
        if found is None:
            self._at.append(None)
            return number
        start = self._file.seek(0, 2)
        self._file.write(found.structure.tobytes())
        self._at.append((start, found.structure.shape))
        self._places.append(found.places)
        self._vectors.append(found.vectors)
        self._owners.append(number)
        return number

    def alike(self) -> Iterator[Likeness]:
        """Yield the pairs of volumes that show the same scan, the smaller number first."""
        for (first, second), shift in sorted(self._voted().items()):
            found = self._compare(first, second, shift)
            if found is not None:
                yield found

    def _voted(self) -> dict[tuple[int, int], Array]:
        """Return the shift, in cubes, that enough places of two volumes agree on."""
        if len(self._owners) < 2:
            return {}
        vectors = np.concatenate(self._vectors)
        places = np.concatenate(self._places)
        owners = np.repeat(self._owners, [len(item) for item in self._vectors])
        _, near = spatial.cKDTree(vectors).query(vectors, k=NEAREST + 1, distance_upper_bound=CLOSE)
        votes: dict[tuple[int, int], list[Array]] = collections.defaultdict(list)
        for mine, others in enumerate(near):
            for other in others:
                if other < len(owners) and owners[mine] < owners[other]:
                    pair = (int(owners[mine]), int(owners[other]))
                    votes[pair].append(places[other] - places[mine])
        found = {}
        for pair, shifts in votes.items():
            if len(shifts) >= VOTES:
                shift = _majority(np.array(shifts))
                if shift is not None:
                    found[pair] = shift
        return found

    def _structure(self, number: int) -> Array:
        held = self._at[number]
        if held is None:
            raise ValueError(f"volume {number} has no structure")
        start, shape = held
        self._file.seek(start)
        count = int(np.prod(shape))
        return np.frombuffer(self._file.read(count), np.int8).reshape(shape).astype(np.float32)

    def _compare(self, first: int, second: int, shift: Array) -> Likeness | None:
        """Lay two structures over each other and correlate where both are."""
        ours, theirs = self._structure(first), self._structure(second)
        for axis in range(3):
            there = np.arange(ours.shape[axis]) + float(shift[axis])
            inside = (there >= 0) & (there <= theirs.shape[axis] - 1)
            if not inside.any():
                return None
            theirs = interpolate(theirs, there[inside], axis)
            ours = ours.compress(inside, axis)
        smaller = min(np.prod(self._at[number][1]) for number in (first, second))  # type: ignore[index]
        overlap = float(ours.size / smaller)
        length = float(np.linalg.norm(ours) * np.linalg.norm(theirs))
        if overlap < OVERLAP or length == 0:
            return None
        agreement = float((ours * theirs).sum()) / length
        if agreement < AGREEMENT or weakest_tenth(ours, theirs) < EVERYWHERE:
            return None
        z, y, x = (float(step) * STEP_MM for step in shift)
        return Likeness(
            first=first, second=second, agreement=agreement, overlap=min(overlap, 1.0), shift_mm=(z, y, x)
        )


def weakest_tenth(ours: Array, theirs: Array) -> float:
    """Return what the blocks of two structures that lie over each other correlate by, but for one in ten.

    Blocks without structure say nothing; what does not fill a last block is left out.
    """
    edges = [min(BLOCK, count) for count in ours.shape]
    z, y, x = (count // edge for count, edge in zip(ours.shape, edges, strict=True))
    first, second = (
        item[: z * edges[0], : y * edges[1], : x * edges[2]].reshape(z, edges[0], y, edges[1], x, edges[2])
        for item in (ours, theirs)
    )
    products = ((first * second), (first * first), (second * second))
    both, one, other = (product.mean(axis=(1, 3, 5)).ravel() for product in products)
    structured = np.maximum(one, other) > STRUCTURED**2
    if not structured.any():
        return 0.0
    length = np.sqrt(one * other)[structured]
    return float(np.quantile(both[structured] / np.maximum(length, 1e-6), 0.1))


def _majority(shifts: Array) -> Array | None:
    """Return the mean of the most shifts that lie together, None where too few do."""
    apart = np.linalg.norm(shifts[:, None] - shifts[None], axis=2) * STEP_MM
    together = apart <= SHIFT_MM
    best = int(together.sum(axis=1).argmax())
    if together[best].sum() < VOTES:
        return None
    return np.asarray(np.median(shifts[together[best]], axis=0), dtype=np.float32)
