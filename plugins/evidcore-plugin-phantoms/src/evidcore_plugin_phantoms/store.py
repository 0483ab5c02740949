"""What is drawn once, by all cores, lies in the cache: files and folders that are whole or not there.

A split's workers are plain processes: those of a pool would import the caller's main module again.
"""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock

Result = TypeVar("Result")
SMALL = 48  # cases that are drawn sooner than a second process has started


def made(target: Path, fill: Callable[[Path], object]) -> Path:
    """Return a file or folder of the cache; fill it where it is not there.

    It gets its name only when it is complete, so a killed process leaves nothing that could be taken for it.
    Processes that want the same one wait for the first.
    """
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".partial-{target.name}")  # an image's writer goes by the name's end
    with FileLock(target.with_name(f".{target.name}.lock")):
        if not target.exists():
            _remove(partial)
            try:
                fill(partial)
                partial.rename(target)
            except BaseException:
                _remove(partial)
                raise
    return target


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    path.unlink(missing_ok=True)


def spread(work: Callable[[int], Result], count: int) -> list[Result]:
    """Return what `work` gives for each number, by as many processes as there are cores and enough to do.

    Raises:
        OSError: if a file could not be written, here or in a worker.
    """
    workers = min(len(os.sched_getaffinity(0)), count // SMALL)
    return shared(work, count, workers) if workers > 1 else [work(number) for number in range(count)]


def shared(work: Callable[[int], Result], count: int, workers: int) -> list[Result]:
    """Return what `work` gives for each number; each worker takes every so many-th."""
    code = f"from {__name__} import run_share; run_share()"
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    running = []
    for first in range(workers):
        share = pickle.dumps((work, range(first, count, workers), os.getpid())).hex()
        running.append(
            subprocess.Popen(
                [sys.executable, "-c", code, share],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, **threads},
            )
        )
    results: list[Any] = [None] * count
    try:
        for first, process in enumerate(running):
            out, said = process.communicate()
            if process.returncode:
                lines = said.decode().strip().splitlines()
                raise OSError(lines[-1] if lines else f"exit {process.returncode}")
            results[first::workers] = pickle.loads(out)
    finally:
        for process in running:
            process.kill()
            process.communicate()
    return results


def run_share() -> None:
    """Do what the command line holds, and stop if the process that asked for it is gone."""
    work, numbers, parent = pickle.loads(bytes.fromhex(sys.argv[1]))
    results = [work(number) for number in numbers if os.getppid() == parent]
    sys.stdout.buffer.write(pickle.dumps(results))
