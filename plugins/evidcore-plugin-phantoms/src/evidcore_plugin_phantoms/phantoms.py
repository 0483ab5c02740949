"""What every generated data set shares: options, random streams, volumes in the cache, parts of a case.

A set is the dataclass of its options. What decides the voxels names the folder in the cache; with what
decides the questions it is the set's fingerprint. A split is drawn by all cores, in plain processes: those of
a pool would import the caller's main module again.
"""

import dataclasses
import functools
import hashlib
import json
import os
import pickle
import subprocess
import sys
import zipfile
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeVar

import nibabel
import numpy as np
from annotated_types import Ge, Le
from pydantic import TypeAdapter

from evidcore.api import Cache, Case, Dataset, Finding, Report, VolumeRef
from evidcore.case import Split
from evidcore_plugin_phantoms.wording import Sentence, written

Result = TypeVar("Result")
SMALL = 48  # cases that are drawn sooner than a second process has started
SPLITS = ("train", "validation", "test")
BALANCING = (1 << 32, 1)  # the stream that decides what is asked about a split: two words more, no phantom's
Count = Annotated[int, Ge(0), Le(99_999)]  # five digits name a case


@dataclasses.dataclass(frozen=True, kw_only=True)
class Described:
    """What is said of a phantom, and what is true of it; what is asked is decided over its split."""

    report: Report
    impression: str
    indication: str
    findings: tuple[Finding, ...]

    @classmethod
    def of(cls, lines: Sequence[Sentence], findings: Iterable[Finding], **more: Any) -> Self:
        """Write the report, and mark where it names each finding."""
        report, spans = written(lines)
        marked = (dataclasses.replace(finding, span=spans.get(finding.name)) for finding in findings)
        return cls(report=report, findings=tuple(marked), **more)

    def fields(self, *, indicated: bool) -> dict[str, Any]:
        """Return report, findings and notes of the case; the notes tell the indication only if asked to."""
        indication = {"indication": self.indication} if indicated else {}
        notes = {"impression": self.impression, **indication}
        return {"report": self.report, "findings": self.findings, "notes": notes}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Drawn:
    """A phantom ready to be written."""

    hu: np.ndarray[Any, np.dtype[np.int16]]  # (z, y, x) in body axes
    spacing_mm_zyx: tuple[float, float, float]  # as the header states it
    arrays: Mapping[str, np.ndarray[Any, Any]]  # masks and label maps by key, each (z, y, x)
    known: Any  # everything else that is known, as the set's `known_as`


@dataclasses.dataclass(kw_only=True, eq=False)
class Phantoms(Dataset):
    """A population that is drawn when it is first asked for, and kept.

    `version` is raised where the same options draw something else, as tests/test_golden.py finds out: what
    was drawn or trained before is then never taken for it.

    Args:
        cache_folder: where volumes are kept, in a folder named by the hash of all options.
        train_cases: patients to learn from.
        validation_cases: patients to choose by.
        test_cases: patients to measure on.
        seed: every seed is another population.
    """

    cache_folder: Path = dataclasses.field(kw_only=False)
    train_cases: Count
    validation_cases: Count
    test_cases: Count
    seed: Annotated[int, Ge(0)] = 17

    version: ClassVar[int] = 1
    folder_name: ClassVar[str]  # of the set, in messages and keys
    asked: ClassVar[tuple[str, ...]]  # options that decide what is asked about the cases, and no voxel
    known_as: ClassVar[type]  # the dataclass that holds what is known of a phantom

    @abstractmethod
    def draw(self, split: str, number: int, *, without: str | None = None) -> Drawn:
        """Draw one phantom; no other number, split or seed shares its random streams.

        Where a finding is left out, all else is drawn as if it were there.
        """

    @abstractmethod
    def parts(self, split: str, known: Sequence[Any], paths: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield the fields of each case of a split, with what it is asked; `paths` are those of its masks."""

    def cases(self, split: Split) -> Iterator[Case]:
        """Yield the cases of a split; draws them first if they are not in the cache."""
        if getattr(self, f"{split}_cases"):
            folder, known = self.drawn(split)
            paths = [str(folder / f"{number:05d}.npz") for number in range(len(known))]
            for number, parts in enumerate(self.parts(split, known, paths)):
                volume = VolumeRef(path=str(folder / f"{number:05d}.nii"), intensity="hu")
                patient = f"phantom-{self.seed}-{split}-{number:05d}"
                yield Case(id=f"{split}-{number:05d}", patient=patient, volumes=(volume,), **parts)

    def stream(self, split: str, number: int, *part: int) -> np.random.Generator:
        """Return one of a phantom's own random streams."""
        return np.random.default_rng([self.seed, SPLITS.index(split), number, *part])

    def _options(self, *left_out: str) -> dict[str, Any]:
        options = dataclasses.asdict(self) | {"version": self.version}
        return {name: value for name, value in options.items() if name not in ("cache_folder", *left_out)}

    def _key(self, **of: Any) -> dict[str, Any]:
        """Return all that decides the voxels, and how they are stored."""
        options = self._options(*self.asked, *(f"{split}_cases" for split in SPLITS))
        return {**options, "set": self.folder_name, "layout": 2, **of}  # raised with the form of cases.json

    def fingerprint(self) -> str:
        """Return a short hash of all options and of the version of what is drawn."""
        return hashlib.sha256(json.dumps(self._options(), sort_keys=True).encode()).hexdigest()[:16]

    def without(self, case: Case, finding: str) -> tuple[VolumeRef, ...] | None:
        """Return the volume of the same patient without `finding`, drawn when it is first asked for."""
        state = case.state_of(finding)
        if state != "present":
            return None if state is None else case.volumes
        split, _, number = case.id.partition("-")

        def write_twin(path: Path) -> None:
            path.write_bytes(_nifti(self.draw(split, int(number), without=finding)))

        key = self._key(split=split, number=number, without=finding)
        path = Cache("phantoms", self.cache_folder).file(key, ".nii", write_twin)
        return (dataclasses.replace(case.volumes[0], path=str(path)),)

    def drawn(self, split: str) -> tuple[Path, list[Any]]:
        """Return a split's folder and what is known about its cases; draw it if it is not in the cache."""
        count = int(getattr(self, f"{split}_cases"))

        def fill(partial: Path) -> None:
            known = spread(functools.partial(write, self, split, partial), count)
            plain = [dataclasses.asdict(each) for each in known]
            (partial / "cases.json").write_text(json.dumps(plain), encoding="utf-8")

        folder = Cache("phantoms", self.cache_folder).folder(self._key(split=split, count=count), fill)
        known: TypeAdapter[list[Any]] = TypeAdapter(list[self.known_as])  # type: ignore[name-defined]
        return folder, known.validate_python(json.loads((folder / "cases.json").read_text("utf-8")))


def write(phantoms: Phantoms, split: str, folder: Path, number: int) -> Any:
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


def spread(work: Callable[[int], Result], count: int, workers: int | None = None) -> list[Result]:
    """Return what `work` gives for each number; each worker process takes every so many-th.

    There are as many as cores and enough to do, if not told.

    Raises:
        OSError: if a file could not be written, here or in a worker.
    """
    if workers is None:
        workers = min(len(os.sched_getaffinity(0)), count // SMALL)
    if workers < 2:
        return [work(number) for number in range(count)]
    code = f"from {__name__} import run_share; run_share()"
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

    def run(first: int) -> list[Result]:
        share = pickle.dumps((work, range(first, count, workers), os.getpid())).hex()
        command = [sys.executable, "-P", "-c", code, share]
        ended = subprocess.run(command, capture_output=True, env={**os.environ, **threads}, check=False)
        if ended.returncode:
            raise RuntimeError(f"a worker ended with {ended.returncode}: {ended.stderr.decode()}")
        part: list[Result] | OSError = pickle.loads(ended.stdout)
        if isinstance(part, OSError):
            raise part
        return part

    results: list[Any] = [None] * count
    with ThreadPoolExecutor(workers) as pool:
        for first, part in enumerate(pool.map(run, range(workers))):
            results[first::workers] = part
    return results


def run_share() -> None:
    """Do what the command line holds, and stop if the process that asked for it is gone."""
    work, numbers, parent = pickle.loads(bytes.fromhex(sys.argv[1]))
    try:
        result: Any = [work(number) for number in numbers if os.getppid() == parent]
    except OSError as cause:  # a full disk: the cache names it
        result = cause
    sys.stdout.buffer.write(pickle.dumps(result))
