"""Prefetch: results come in order, or when they are asked for, while other threads make the next ones.

Reading, unpacking and resampling run in C without Python's lock, so threads are enough: they need no copy of
the program each, and hand over arrays as they are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

import torch

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")

MOST_THREADS = 8  # each holds a volume, in the file's type and as float32


def prefetch(
    work: Callable[[Item], Result], items: Iterable[Item], *, threads: int | None = None
) -> Iterator[Result]:
    """Yield `work(item)` for each item, in order; at most twice as many as threads are begun at a time.

    Args:
        work: a function whose results do not depend on the order of its calls.
        items: its arguments.
        threads: how many work at once; None: as many as torch uses, at most 8. With 1, nothing is prefetched.

    Raises:
        Exception: what `work` raised, at the place of its item; pending items are cancelled.
    """
    threads = threads or _threads()
    if threads == 1:
        yield from map(work, items)
        return
    begun: deque[Future[Result]] = deque()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="prefetch")
    try:
        for item in items:
            begun.append(pool.submit(work, item))
            if len(begun) == 2 * threads:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


class Prefetched(Generic[Key, Result]):
    """Results that are begun, by key, before they are asked for, while the caller goes on with its own work.

    Where torch uses one thread nothing is begun: that work would only be held up.
    """

    def __init__(self) -> None:
        """Begin nothing yet."""
        self._begun: dict[Key, Future[Result]] = {}
        self._pool: ThreadPoolExecutor | None = None

    def begin(self, key: Key, work: Callable[..., Result], *given: object, most: int) -> None:
        """Begin `work(*given)`, unless `most` results or this one are there or on their way."""
        if key in self._begun or len(self._begun) >= most or _threads() == 1:
            return
        self._pool = self._pool or ThreadPoolExecutor(_threads(), thread_name_prefix="prefetched")
        self._begun[key] = self._pool.submit(work, *given)

    def take(self, key: Key) -> Future[Result] | None:
        """Return what was begun and let go of it; None where nothing was."""
        return self._begun.pop(key, None)

    def drop(self, key: Key) -> None:
        """Let go of a result that nothing will ask for."""
        begun = self.take(key)
        if begun is not None:
            begun.cancel()


def _threads() -> int:
    return min(MOST_THREADS, torch.get_num_threads())
