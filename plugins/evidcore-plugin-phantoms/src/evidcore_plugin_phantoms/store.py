"""Phantoms on disk: drawn once, by all cores, whole or not at all."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from filelock import FileLock

from evidcore.errors import DataError
from evidcore_plugin_phantoms.drawing import Population, nifti, write

SMALL = 48  # cases that are drawn sooner than a second process has started


def ensure(root: Path, population: Population, split: str, count: int) -> Path:
    """Return the folder that holds a split; draw it if it is not there.

    The folder gets its name only when everything in it is complete, so a killed process leaves nothing that
    could be taken for a split. Processes that want the same split wait for the first one.

    Raises:
        DataError: if the disk is full or cannot be written; names the folder.
    """
    asked = {**population.key(), "split": split, "count": count}
    key = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16]
    done, partial = root / key, root / f".{key}.partial"
    if done.exists():
        return done
    try:
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(root / f".{key}.lock"):
            if not done.exists():
                shutil.rmtree(partial, ignore_errors=True)
                partial.mkdir()
                workers = min(len(os.sched_getaffinity(0)), count // SMALL)
                draw(population, split, count, partial, workers=workers)
                _gather(partial, count)
                partial.rename(done)
    except OSError as cause:
        shutil.rmtree(partial, ignore_errors=True)
        raise DataError(
            f"{root}: the {count} phantoms of split {split!r} could not be written ({cause}). They "
            f"take about {count * population.case_mb:.0f} MB; free some space, or set EVID_CACHE to another "
            f"folder."
        ) from cause
    return done


def twin(root: Path, population: Population, split: str, number: int, finding: str) -> Path:
    """Return the volume of a case without one of its findings; draw it if it is not there.

    Raises:
        DataError: if the disk is full or cannot be written; names the folder.
    """
    key = hashlib.sha256(json.dumps(population.key(), sort_keys=True).encode()).hexdigest()[:16]
    path = root / f"{key}-twins" / f"{split}-{number:05d}-without-{finding.replace(' ', '-')}.nii"
    if path.exists():
        return path
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(nifti(population.drawn(split, number, without=finding)).to_bytes())
        partial.replace(path)
    except OSError as cause:
        partial.unlink(missing_ok=True)
        raise DataError(
            f"{path}: the phantom without {finding!r} could not be written ({cause}). Free some space, or "
            f"set EVID_CACHE to another folder."
        ) from cause
    return path


def draw(population: Population, split: str, count: int, folder: Path, *, workers: int) -> None:
    """Draw a split into `folder`, with `workers` processes if that is more than one.

    Raises:
        OSError: if a file could not be written, here or in a worker.
    """
    if workers < 2:
        write(population, split, range(count), folder, parent=0)
        return
    running = [_start(population, split, range(worker, count, workers), folder) for worker in range(workers)]
    try:
        for process in running:
            _, said = process.communicate()
            if process.returncode != 0:
                raise OSError(said.strip().splitlines()[-1] if said.strip() else f"exit {process.returncode}")
    finally:
        for process in running:
            process.kill()
            process.wait()


def _start(population: Population, split: str, numbers: range, folder: Path) -> subprocess.Popen[str]:
    # A plain process rather than a pool's, which would import the caller's main module again, torch and all.
    work = {
        "population": dataclasses.asdict(population),
        "split": split,
        "numbers": (numbers.start, numbers.stop, numbers.step),
        "folder": str(folder),
        "parent": os.getpid(),
    }
    return subprocess.Popen(
        [sys.executable, "-m", type(population).__module__, json.dumps(work)],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )


def _gather(folder: Path, count: int) -> None:
    """Put the cases' descriptions into one file."""
    parts = [folder / f"{number:05d}.json" for number in range(count)]
    known = [json.loads(part.read_text(encoding="utf-8")) for part in parts]
    (folder / "cases.json").write_text(json.dumps(known), encoding="utf-8")
    for part in parts:
        part.unlink()
