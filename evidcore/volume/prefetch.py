"""Prefetch: results come in order while other threads make the next ones.

Reading, unpacking and resampling run in C without Python's lock, so threads are enough: they need no copy of
the program each, and hand over arrays as they are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

Item = TypeVar("Item")
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
    threads = threads or min(MOST_THREADS, torch.get_num_threads())
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
