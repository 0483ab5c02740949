"""Work ahead: results come in order while the next ones are being made in other threads.

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


def ahead(
    work: Callable[[Item], Result], items: Iterable[Item], *, threads: int | None = None
) -> Iterator[Result]:
    """Yield `work(item)` for each item, in order; at most twice as many as threads are begun at a time.

    Args:
        work: what is done; may not hang on the order of its calls.
        items: of which.
        threads: how many work at once; None: as many as torch uses, at most 8. With 1, nothing runs ahead.

    Raises:
        Exception: what `work` raised, at the place of its item; what is not begun is not begun any more.
    """
    threads = threads or min(MOST_THREADS, torch.get_num_threads())
    if threads == 1:
        yield from map(work, items)
        return
    begun: deque[Future[Result]] = deque()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="ahead")
    try:
        for item in items:
            begun.append(pool.submit(work, item))
            if len(begun) == 2 * threads:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
