"""Work through items in this process or in several, and keep their order."""

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from typing import TypeVar

from evidcore.errors import RunError

Given = TypeVar("Given")
Made = TypeVar("Made")


def in_processes(
    function: Callable[[Given], Made], items: Iterable[Given], processes: int, killed: str
) -> Iterator[Made]:
    """Yield what a function makes of each item, in their order; one process is this one.

    Raises:
        RunError: with the message `killed`, if a process was killed.
    """
    if processes == 1:
        yield from map(function, items)
        return
    # torch's threads do not survive a fork
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=_begin) as pool:
        try:
            yield from pool.map(function, items)
        except BrokenProcessPool as cause:
            raise RunError(killed) from cause


def _begin() -> None:
    """Work on one core, leave Ctrl-C to the process that asks, and end when that one has been killed."""
    os.environ["OMP_NUM_THREADS"] = "1"  # before torch or NumPy is imported here
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        asking = parent_process()
        if asking is not None:
            asking.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
