"""What every generated data set shares: options, random streams, volumes in the cache, parts of a case.

A set is the dataclass of its options. What decides the voxels names the folder in the cache; with what
decides the questions it is the set's fingerprint.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import zipfile
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import nibabel
import numpy as np
from annotated_types import Ge

from evidcore.cache import Cache
from evidcore.case import Case, Finding, Report, Span, VolumeRef
from evidcore.contracts import Dataset
from evidcore.errors import DataError, RunError
from evidcore_plugin_phantoms.store import spread
from evidcore_plugin_phantoms.wording import Written

SPLITS = ("train", "validation", "test")
Count = Annotated[int, Ge(0)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Drawn:
    """A phantom ready to be written."""

    hu: np.ndarray[Any, np.dtype[np.int16]]  # (z, y, x) in body axes
    spacing_mm_zyx: tuple[float, float, float]  # as the header states it
    arrays: Mapping[str, np.ndarray[Any, Any]]  # masks and label maps by key, each (z, y, x)
    known: dict[str, Any]  # everything else that is known, in JSON's types


@dataclasses.dataclass(kw_only=True, eq=False)
class Phantoms(Dataset):
    """A population that is drawn when it is first asked for, and kept.

    `version` is raised where the same options draw something else, as tests/test_golden.py finds out: what
    was drawn or trained before is then never taken for it.
    """

    cache_folder: Path = dataclasses.field(kw_only=False)
    train_cases: Count
    validation_cases: Count
    test_cases: Count
    seed: Annotated[int, Ge(0)] = 17

    version: ClassVar[int] = 1
    folder_name: ClassVar[str]  # of the set, in messages and keys
    asked: ClassVar[tuple[str, ...]]  # options that decide what is asked about the cases, and no voxel

    @property
    @abstractmethod
    def case_mb(self) -> float:
        """Return what a case takes on disk, in MB."""

    @abstractmethod
    def draw(self, split: str, number: int, *, without: str | None = None) -> Drawn:
        """Draw one phantom; no other number, split or seed shares its random streams.

        Args:
            split: of the case.
            number: of the case in its split.
            without: a finding that is left out; all else is drawn as if it were there.
        """

    def stream(self, split: str, number: int, *part: int) -> np.random.Generator:
        """Return one of a phantom's own random streams."""
        return np.random.default_rng([self.seed, SPLITS.index(split), number, *part])

    def balancing(self, split: str) -> np.random.Generator:
        """Return the stream that decides what is asked about a split."""
        return self.stream(split, 1 << 32, 1)  # two words and one more: no phantom's

    def count(self, split: str) -> int:
        """Return how many cases a split has."""
        return int(getattr(self, f"{split}_cases"))

    def _options(self) -> dict[str, Any]:
        options = dataclasses.asdict(self)
        del options["cache_folder"]
        return {**options, "version": self.version}

    @property
    def _cache(self) -> Cache:
        return Cache("phantoms", self.cache_folder)

    def _key(self, **of: Any) -> dict[str, Any]:
        """Return all that decides the voxels."""
        other = {*self.asked, *(f"{split}_cases" for split in SPLITS)}
        options = {name: value for name, value in self._options().items() if name not in other}
        return {**options, "set": self.folder_name, **of}

    def fingerprint(self) -> str:
        """Return a short hash of all options and of the version of what is drawn."""
        return _hash(self._options())

    def without(self, case: Case, finding: str) -> tuple[VolumeRef, ...] | None:
        """Return the volume of the same patient without `finding`, drawn when it is first asked for."""
        state = case.state_of(finding)
        if state != "present":
            return None if state is None else case.volumes
        split, _, number = case.id.partition("-")

        def write_twin(path: Path) -> None:
            path.write_bytes(_nifti(self.draw(split, int(number), without=finding)))

        key = self._key(split=split, number=number, without=finding)
        try:
            path = self._cache.file(key, ".nii", write_twin)
        except (OSError, RunError) as cause:
            raise DataError(
                f"{self._cache.path(key, '.nii')}: the phantom without {finding!r} could not be written "
                f"({cause}). Free some space, or set EVID_CACHE to another folder."
            ) from cause
        return (dataclasses.replace(case.volumes[0], path=str(path)),)

    def drawn(self, split: str) -> tuple[Path, list[dict[str, Any]]]:
        """Return a split's folder and what is known about its cases; draw it if it is not in the cache.

        Raises:
            DataError: if the disk is full or cannot be written; names the folder.
        """
        count = self.count(split)
        key = self._key(split=split, count=count)

        def fill(partial: Path) -> None:
            known = spread(functools.partial(write, dataclasses.replace(self), split, partial), count)
            (partial / "cases.json").write_text(json.dumps(known), encoding="utf-8")

        try:
            folder = self._cache.folder(key, fill)
        except (OSError, RunError) as cause:
            raise DataError(
                f"{self._cache.path(key).parent}: the {count} phantoms of split {split!r} could not be "
                f"written ({cause}). They take about {count * self.case_mb:.0f} MB; free some space, or "
                f"set EVID_CACHE to another folder."
            ) from cause
        return folder, json.loads((folder / "cases.json").read_text(encoding="utf-8"))

    def _common(
        self, folder: Path, split: str, number: int, known: Mapping[str, Any], *, indicated: bool = False
    ) -> dict[str, Any]:
        """Return the fields of a case that `known` has: who, volume, report, findings, notes."""
        common: dict[str, Any] = {
            "id": f"{split}-{number:05d}",
            "patient": f"phantom-{self.seed}-{split}-{number:05d}",
            "volumes": (VolumeRef(path=str(folder / f"{number:05d}.nii"), intensity="hu"),),
        }
        if "report" in known:
            spans = tuple(Span(start=start, end=end, label=label) for start, end, label in known["spans"])
            told = {"indication": known["indication"]} if indicated else {}
            common["report"] = Report(text=known["report"], spans=spans)
            common["notes"] = {"impression": known["impression"], **told}
            common["findings"] = tuple(_finding(item) for item in known["findings"])
        return common


def _hash(options: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()[:16]


def described(
    report: Written, impression: str, indication: str, findings: Mapping[str, tuple[bool, Any, Any]]
) -> dict[str, Any]:
    """Return what is known of a phantom, in JSON's types; findings are whether present, side and size."""
    return {
        "report": report.text,
        "spans": report.spans,
        "impression": impression,
        "indication": indication,
        "findings": [
            {"name": name, "present": present, "side": side, "size_mm": size, "span": report.places.get(name)}
            for name, (present, side, size) in findings.items()
        ],
    }


def _finding(item: Mapping[str, Any]) -> Finding:
    span = None  # the report does not name it
    if item["span"] is not None:
        start, end = item["span"]
        span = Span(start=start, end=end, label="abnormal" if item["present"] else "normal")
    state: Literal["present", "absent"] = "present" if item["present"] else "absent"
    return Finding(name=item["name"], state=state, side=item["side"], size_mm=item["size_mm"], span=span)


def write(phantoms: Phantoms, split: str, folder: Path, number: int) -> dict[str, Any]:
    """Write volume and masks of a case; return what is known of it."""
    drawn = phantoms.draw(split, number)
    (folder / f"{number:05d}.nii").write_bytes(_nifti(drawn))
    # what np.savez_compressed writes, at the level that halves the time
    with zipfile.ZipFile(folder / f"{number:05d}.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, array in drawn.arrays.items():
            with archive.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
    return drawn.known


def affine(
    size_zyx: tuple[int, ...], spacing_mm_zyx: tuple[float, float, float]
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the NIfTI affine: voxel x runs to the patient's left, y to posterior; NIfTI's world is RAS."""
    z, y, x = spacing_mm_zyx
    matrix = np.diag([-x, -y, z, 1.0])
    matrix[:3, 3] = -matrix[:3, :3] @ ((np.array(size_zyx[::-1]) - 1) / 2)
    return matrix


def _nifti(drawn: Drawn) -> bytes:
    image = nibabel.Nifti1Image(drawn.hu.transpose(2, 1, 0), affine(drawn.hu.shape, drawn.spacing_mm_zyx))
    image.header.set_xyzt_units("mm")
    return bytes(image.to_bytes())


def noisy(
    hu: np.ndarray[Any, np.dtype[np.float32]], noise_hu: float, rng: np.random.Generator
) -> np.ndarray[Any, np.dtype[np.int16]]:
    """Return voxels in HU with noise, as a scanner stores them."""
    voxels = rng.standard_normal(hu.shape, dtype=np.float32)
    voxels *= noise_hu
    voxels += hu
    return np.asarray(np.clip(voxels, -1024, 3071, out=voxels), dtype=np.int16)


def chances(
    findings: Sequence[str],
    indications: Mapping[str, Sequence[str]],
    *,
    prevalence: float,
    prior_strength: float,
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return how likely each finding is for each type of patient, shape (indication, finding).

    Averaged over the types, which are equally frequent, each finding has probability `prevalence` whatever
    the prior strength. At strength 1 it is five times as likely (at most 0.9) in its own type of patient, or
    as often as it takes to occur in no other; at 0 the types are alike.
    """
    types = len(indications)
    own = max(prevalence, min(0.9, 5 * prevalence, types * prevalence))
    other = (prevalence - own / types) * types / (types - 1)
    belongs = np.array([[name in names for name in findings] for names in indications.values()])
    extreme = np.where(belongs, own, other)
    return np.asarray(prevalence + (extreme - prevalence) * prior_strength, dtype=np.float64)
