"""Prefetch: other threads make what will be asked for.

Reading, unpacking and resampling run in C without Python's lock, so threads are enough: they need no copy of
the program each, and hand over arrays as they are.
"""

import math
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

import torch

Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")

MOST_THREADS = 8  # each holds a volume, in the file's type and as float32


def thread_count() -> int:
    """Return how many threads make results: as many as torch uses, at most 8."""
    return min(MOST_THREADS, torch.get_num_threads())


class Prefetched(Generic[Key, Result]):
    """Results by key, begun before they are asked for, while the caller goes on with its own work.

    Where torch uses one thread nothing is begun: that work would only be held up.
    """

    def __init__(self) -> None:
        self._begun: dict[Key, Future[Result]] = {}
        self._pool: ThreadPoolExecutor | None = None

    def begin(self, key: Key, work: Callable[..., Result], *given: object, most: float = math.inf) -> None:
        """Begin `work(*given)`, unless that is begun, or `most` others are."""
        if key in self._begun or len(self._begun) >= most or thread_count() == 1:
            return
        self._pool = self._pool or ThreadPoolExecutor(thread_count(), thread_name_prefix="prefetch")
        self._begun[key] = self._pool.submit(work, *given)

    def take(self, key: Key, work: Callable[..., Result], *given: object) -> Result:
        """Return what was begun, or `work(*given)` where nothing was; raise what `work` raised."""
        begun = self._begun.pop(key, None)
        return work(*given) if begun is None else begun.result()

    def drop(self, key: Key) -> None:
        """Let go of a result that nothing will ask for."""
        begun = self._begun.pop(key, None)
        if begun is not None:
            begun.cancel()
