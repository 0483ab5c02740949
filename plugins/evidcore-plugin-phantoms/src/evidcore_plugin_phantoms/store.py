"""A split is drawn by all cores.

Its workers are plain processes: those of a pool would import the caller's main module again.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")
SMALL = 48  # cases that are drawn sooner than a second process has started


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
