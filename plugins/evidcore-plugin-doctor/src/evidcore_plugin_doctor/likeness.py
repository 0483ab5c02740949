"""Which volumes are copies of each other: another crop, resampling, rescaling or noise over the same scan.

Each volume leaves a fingerprint: its structure of 6 to 12 mm, and where that is strongest, the surroundings
as short vectors. Vectors that agree between two volumes vote for a shift, or else for a turn with a shift;
the structures are then laid over each other so and correlated, as a whole and in blocks of 40 mm: two bodies
of one build agree in their outlines, copies agree everywhere.

Source:
    The way from keypoints to a vote follows Lowe 2004, Distinctive image features from scale-invariant
    keypoints, IJCV 60, sections 3, 5 and 7, without scale, with turns up to 15 degrees. Turns are
    fitted after Kabsch 1976, A solution for the best rotation to relate two sets of vectors, Acta Cryst. A32.

Equal voxels are a fault wherever they stand. What is only alike is none within one patient and one split:
scanners give several reconstructions of one examination, and published sets hold them all.
"""

import collections
import dataclasses
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import fft, ndimage, spatial

from evidcore.case import Intensity
from evidcore_plugin_doctor.coarse import STEP_MM, Grid, block_means
from evidcore_plugin_doctor.fault import Fault, Severity
from evidcore_plugin_doctor.repeats import Home, repeated

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
TURN_VOTES = 6  # three places give a turn, so more must agree with it
TURN_DEGREES = 15.0
TRIALS = 200  # of three places each
EVERYWHERE_TURNED = 0.82  # turned copies reach 0.88, phantoms of one build 0.74
EVERYWHERE = 0.88  # of nine tenths of the blocks; copies reach 0.93, phantoms of one build 0.84
BLOCK = 8  # cubes
STRUCTURED = 25  # of 127: blocks with less hold mostly noise
OVERLAP = 0.5  # of the smaller volume
WEAK = 0.02  # of the clipped range: 32 HU
CLIP_HU = (-1000.0, 600.0)
CLIP_PERCENTILES = (0.5, 99.5)
_OTHERS = ((1, 2), (0, 2), (0, 1))  # axes beside each axis

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
    turn_degrees: float = 0.0


def fingerprint(coarse: Grid, intensity: Intensity) -> Fingerprint | None:
    """Return the fingerprint, None where the volume shows too little structure for one."""
    low, high = CLIP_HU if intensity == "hu" else np.percentile(coarse, CLIP_PERCENTILES)
    if not low < high:
        return None
    scaled: Array = ((np.clip(coarse, low, high) - low) / (high - low)).astype(np.float32)
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
    peaks = (strength == ndimage.maximum_filter(strength, 3)) & (strength > 0.02)
    places = np.argwhere(peaks[(slice(margin, -margin),) * 3]) + margin
    places = places[np.argsort(-strength[tuple(places.T)], kind="stable")[:POINTS]]
    offsets = []
    for step in np.eye(3, dtype=np.intp):
        before, at, after = (strength[tuple((places + shift * step).T)] for shift in (-1, 0, 1))
        bend = before - 2 * at + after
        bent = np.where(bend < -1e-9, bend, -1.0)
        offsets.append(np.clip((before - after) / (2 * bent), -0.5, 0.5))  # top of a parabola
    return np.asarray(places + np.stack(offsets, axis=1), dtype=np.float32)


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


class Copy(NamedTuple):
    """A volume and whose it is."""

    home: Home
    file: str
    digest: str  # of its voxels


class Library:
    """The volumes of a data set; structures lie in a folder, so that a large set fits into memory.

    Those of a recipe's data sets come one after the other: the cases in `homes`, their `volumes`.
    """

    def __init__(self) -> None:
        self.homes: list[Home] = []
        self.volumes: list[Copy] = []
        self._folder = Path(tempfile.mkdtemp())
        weakref.finalize(self, shutil.rmtree, self._folder)
        self._places: list[Array] = []  # of each volume
        self._vectors: list[Array] = []

    def add(self, volume: Fingerprint | None) -> None:
        """Take in the next volume; one without a fingerprint is like no other."""
        if volume is not None:
            np.save(self._file(len(self._places)), volume.structure)
        self._places.append(np.zeros((0, 3), np.float32) if volume is None else volume.places)
        empty = np.zeros((0, LOWPASS**3 - 1), np.float32)
        self._vectors.append(empty if volume is None else volume.vectors)

    def _file(self, number: int) -> Path:
        return self._folder / f"{number}.npy"

    def alike(self, start: int = 0) -> Iterator[Likeness]:
        """Yield the pairs that show the same scan, the smaller number first, the other from `start` on."""
        for (first, second), (ours, theirs) in sorted(self._matched(start).items()):
            for vote in (_shifted, _turned):
                placement = vote(ours, theirs)
                likeness = None if placement is None else self._compare(first, second, *placement)
                if likeness is not None:
                    yield likeness
                    break

    def _matched(self, start: int) -> dict[tuple[int, int], tuple[Array, Array]]:
        """Return the places, in cubes, where two volumes look alike: (match, 3) in each."""
        owners = np.repeat(np.arange(len(self._vectors)), [len(item) for item in self._vectors])
        if len(np.unique(owners)) < 2:
            return {}
        vectors, places = np.concatenate(self._vectors), np.concatenate(self._places)
        _, near = spatial.cKDTree(vectors).query(vectors, k=NEAREST + 1, distance_upper_bound=CLOSE)
        matches: dict[tuple[int, int], list[tuple[int, int]]] = collections.defaultdict(list)
        for mine, others in enumerate(near):
            for other in others:
                if other < len(owners) and owners[mine] < owners[other] >= start:
                    matches[int(owners[mine]), int(owners[other])].append((mine, int(other)))
        numbers = {pair: np.array(some).T for pair, some in matches.items() if len(some) >= VOTES}
        return {pair: (places[ours], places[theirs]) for pair, (ours, theirs) in numbers.items()}

    def _compare(self, first: int, second: int, turn: Array, shift: Array) -> Likeness | None:
        """Lay two structures over each other and correlate where both are.

        Place p of the first lies at `turn @ p + shift` in the second; turn (3, 3), shift z, y, x in cubes.
        """
        ours, theirs = (np.load(self._file(number)).astype(np.float32) for number in (first, second))
        smaller = min(ours.size, theirs.size)
        theirs = ndimage.affine_transform(theirs, turn, shift, output_shape=ours.shape, order=1, cval=np.nan)
        both = np.isfinite(theirs)
        ours, theirs = np.where(both, ours, 0), np.where(both, theirs, 0)
        is_turned = not np.array_equal(turn, np.eye(3))
        if not is_turned:  # blocks begin where both do
            within = np.ix_(*(both.any(axis=others) for others in _OTHERS))
            ours, theirs = ours[within], theirs[within]
        overlap = float(both.sum() / smaller)
        length = float(np.linalg.norm(ours) * np.linalg.norm(theirs))
        if overlap < OVERLAP or length == 0:
            return None
        agreement = float((ours * theirs).sum()) / length
        everywhere = EVERYWHERE_TURNED if is_turned else EVERYWHERE
        if agreement < AGREEMENT or weakest_tenth(ours, theirs) < everywhere:
            return None
        z, y, x = (float(step) * STEP_MM for step in shift)
        return Likeness(
            first=first,
            second=second,
            agreement=agreement,
            overlap=min(overlap, 1.0),
            shift_mm=(z, y, x),
            turn_degrees=float(np.rad2deg(spatial.transform.Rotation.from_matrix(turn).magnitude())),
        )


def weakest_tenth(ours: Array, theirs: Array) -> float:
    """Return what the blocks of two structures that lie over each other correlate by, but for one in ten.

    Blocks without structure say nothing; what does not fill a last block is left out.
    """
    edges = [min(BLOCK, count) for count in ours.shape]
    products = (ours * theirs, ours * ours, theirs * theirs)
    both, first, second = (block_means(product, edges).ravel() for product in products)
    structured = np.maximum(first, second) > STRUCTURED**2
    if not structured.any():
        return 0.0
    length = np.sqrt(first * second)[structured]
    return float(np.quantile(both[structured] / np.maximum(length, 1e-6), 0.1))


def _shifted(ours: Array, theirs: Array) -> tuple[Array, Array] | None:
    """Return no turn and the mean of the most shifts that lie together, None where too few do."""
    shifts = theirs - ours
    apart = np.linalg.norm(shifts[:, None] - shifts[None], axis=2) * STEP_MM
    together = apart <= SHIFT_MM
    best = int(together.sum(axis=1).argmax())
    if together[best].sum() < VOTES:
        return None
    return np.eye(3, dtype=np.float32), np.median(shifts[together[best]], axis=0).astype(np.float32)


def _turned(ours: Array, theirs: Array) -> tuple[Array, Array] | None:
    """Return the turn and the shift, in cubes, that the most places agree on; None where too few do.

    Turns through three places each are tried, and the best is fitted to all that agree with it.
    """
    if len(ours) < TURN_VOTES:
        return None
    rng = np.random.default_rng(0)
    tried = rng.permuted(np.tile(np.arange(len(ours)), (TRIALS, 1)), axis=1)[:, :3]
    turns, shifts = _fitted(ours[tried], theirs[tried])
    apart = np.linalg.norm(ours @ turns.transpose(0, 2, 1) + shifts[:, None] - theirs, axis=2) * STEP_MM
    votes = (apart <= SHIFT_MM).sum(axis=1)
    cosines = (np.trace(turns, axis1=1, axis2=2) - 1) / 2
    votes[cosines < np.cos(np.deg2rad(TURN_DEGREES))] = 0
    best = int(votes.argmax())
    if votes[best] < TURN_VOTES:
        return None
    agreeing = apart[best] <= SHIFT_MM
    turn, shift = _fitted(ours[None, agreeing], theirs[None, agreeing])
    return turn[0], shift[0]


def _fitted(ours: Array, theirs: Array) -> tuple[Array, Array]:
    """Return turns (trial, 3, 3) and shifts (trial, 3) that bring places onto places, (trial, place, 3)."""
    middle, other = ours.mean(axis=1, keepdims=True), theirs.mean(axis=1, keepdims=True)
    left, _, right = np.linalg.svd((ours - middle).transpose(0, 2, 1) @ (theirs - other))
    signs = np.ones((len(ours), 3))
    signs[:, 2] = np.sign(np.linalg.det(left @ right))  # a turn, no mirror image
    turns = right.transpose(0, 2, 1) @ (signs[:, :, None] * left.transpose(0, 2, 1))
    shifts = other[:, 0] - (turns @ middle.transpose(0, 2, 1))[:, :, 0]
    return turns, shifts


def copied_volumes(library: Library, start: int) -> tuple[list[Fault], int]:
    """Return a fault for each volume from `start` on that was there before, with the first that is like it.

    With the faults comes how many volumes are like others of their patient and split.
    """
    faults: list[Fault] = []
    volumes = library.volumes
    same = repeated([item.digest for item in volumes], [item.home for item in volumes], Home.excludes)
    for number, first in same.items():
        if number >= start:
            where = "the same file" if volumes[first].file == volumes[number].file else volumes[first].file
            text = f"the voxels are those of case {{}} ({where})"
            faults.append(_copy_fault("duplicate", volumes[number], volumes[first], text))
    pairs = {(alike.first, alike.second): alike for alike in library.alike(start)}
    originals: dict[int, int] = {}  # of the copies
    relatives = 0
    for (earlier, later), alike in pairs.items():
        before, volume = volumes[earlier], volumes[later]
        if {earlier, later} & same.keys() or later in originals or not volume.home.excludes(before.home):
            continue
        if (originals.get(earlier), later) in pairs:
            continue  # compared with the original
        patient, split = volume.home.case.patient, volume.home.split
        if patient is not None and (patient, split) == (before.home.case.patient, before.home.split):
            relatives += 1
            continue
        originals[later] = earlier
        shift = ", ".join(f"{step:.0f}" for step in alike.shift_mm)
        turned = f"turned by {alike.turn_degrees:.0f} degrees and " if alike.turn_degrees >= 1 else ""
        text = f"shows what case {{}} shows ({before.file}): correlation {alike.agreement:.3f} "
        text += f"over {100 * alike.overlap:.0f} % of the smaller one, {turned}shifted by ({shift}) mm"
        text += " (z, y, x). It is another crop, resampling, turned or noisy copy"
        faults.append(_copy_fault("near-duplicate", volume, before, text))
    return faults, relatives


def _copy_fault(check: str, volume: Copy, before: Copy, text: str) -> Fault:
    home, other = volume.home, before.home
    severity: Severity = "warning"
    text = text.replace("{}", other.id_within(home.dataset, repr), 1)
    if home.split != other.split:
        severity = "error"
        text += f"; it is in {home.split}, the other in {other.split}"
    patient, patient_before = home.case.patient, other.case.patient
    remedy = "Drop one of them."
    if None in (patient, patient_before):
        remedy = "Drop one of them, or keep both in one split."
    elif patient != patient_before:
        severity = "error" if check == "duplicate" else severity
        text += f"; patients {patient!r} and {patient_before!r}"
        remedy = "Find out whose it is, and drop the other."
    return Fault(
        check=check, severity=severity, case=home.case.id, other=other.id_within(home.dataset),
        file=volume.file, text=f"{text}. {remedy}",
    )  # fmt: skip
