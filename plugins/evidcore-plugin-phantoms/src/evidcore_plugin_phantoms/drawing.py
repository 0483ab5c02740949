"""What every phantom set shares: options that decide its phantoms, and phantoms written to files.

A set's module defines a `Population` and, under `if __name__ == "__main__"`, calls `work` with it; the store
runs that module as a process of its own, without torch.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import nibabel
import numpy as np

SPLITS = ("train", "validation", "test")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Drawn:
    """A phantom ready to be written."""

    hu: np.ndarray[Any, np.dtype[np.int16]]  # (z, y, x) in body axes
    spacing_mm_zyx: tuple[float, float, float]
    arrays: Mapping[str, np.ndarray[Any, Any]]  # masks and label maps by key, each (z, y, x)
    known: dict[str, Any]  # everything else that is known, in JSON's types


@dataclasses.dataclass(frozen=True, kw_only=True)
class Population(ABC):
    """The options that decide what a set's phantoms look like; its fields are of JSON's types.

    `version` is raised where the same options draw something else, as tests/test_golden.py finds out: what
    was drawn or trained before is then never taken for it.
    """

    version: ClassVar[int] = 1
    seed: int
    prior_strength: float

    @property
    @abstractmethod
    def case_mb(self) -> float:
        """Return what a case takes on disk, in MB."""

    def key(self) -> dict[str, Any]:
        """Return all that decides what is drawn, in JSON's types."""
        return {**dataclasses.asdict(self), "version": self.version}

    @abstractmethod
    def drawn(self, split: str, number: int, *, without: str | None = None) -> Drawn:
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


def affine(
    size_zyx: tuple[int, int, int], spacing_mm_zyx: tuple[float, float, float]
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the NIfTI affine: voxel x runs to the patient's left, y to posterior; NIfTI's world is RAS."""
    z, y, x = spacing_mm_zyx
    matrix = np.diag([-x, -y, z, 1.0])
    matrix[:3, 3] = -matrix[:3, :3] @ ((np.array(size_zyx[::-1]) - 1) / 2)
    return matrix


def nifti(drawn: Drawn) -> nibabel.Nifti1Image:
    """Return a phantom's volume as it is written."""
    z, y, x = drawn.hu.shape
    image = nibabel.Nifti1Image(drawn.hu.transpose(2, 1, 0), affine((z, y, x), drawn.spacing_mm_zyx))
    image.header.set_xyzt_units("mm")
    return image


def noisy(
    hu: np.ndarray[Any, np.dtype[np.float32]], noise_hu: float, rng: np.random.Generator
) -> np.ndarray[Any, np.dtype[np.int16]]:
    """Return voxels in HU with noise, as a scanner stores them."""
    voxels = rng.standard_normal(hu.shape, dtype=np.float32)
    voxels *= noise_hu
    voxels += hu
    return np.asarray(np.clip(voxels, -1024, 3071, out=voxels), dtype=np.int16)


def write(population: Population, split: str, numbers: range, folder: Path, parent: int) -> None:
    """Write volumes, masks and descriptions of some cases; stop if the process that asked is gone."""
    for number in numbers:
        if parent and os.getppid() != parent:
            return
        drawn = population.drawn(split, number)
        stem = folder / f"{number:05d}"
        stem.with_suffix(".nii").write_bytes(nifti(drawn).to_bytes())
        _write_arrays(stem.with_suffix(".npz"), drawn.arrays)
        stem.with_suffix(".json").write_text(json.dumps(drawn.known), encoding="utf-8")


def _write_arrays(path: Path, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
    # what np.savez_compressed writes, at the level that halves the time
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def work(population: type[Population]) -> None:
    """Read the work of a process from its command line and do it."""
    asked = json.loads(sys.argv[1])
    write(
        population(**asked["population"]),
        asked["split"],
        range(*asked["numbers"]),
        Path(asked["folder"]),
        asked["parent"],
    )
