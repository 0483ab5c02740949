"""What needs torch is asked of a process of its own, so that a viewer starts at once and stays quick."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from evidcore_plugin_hub.worker import Worker

_MOST_BYTES = 1 << 30  # of the cases of a whole data set
Item = TypeVar("Item")


class Asking:
    """A process that answers for a run: started when it is first asked, and again where it ended."""

    def __init__(self) -> None:
        self._worker: Worker | None = None
        self._lock = threading.Lock()

    def __call__(self, doing: str, *given: Any) -> Any:
        """Return what a method of `RunWorker` gives.

        Raises:
            Broken, Raised: as of `Worker`.
        """
        with self._lock:
            if self._worker is None or not self._worker.is_running:
                serves = "evidcore_plugin_view.run_worker:RunWorker"
                self._worker = Worker(serves, most_bytes=_MOST_BYTES)
            worker = self._worker
        return worker.ask(doing, *given)

    def close(self) -> None:
        """End the process, whatever it does."""
        with self._lock:
            if self._worker is not None:
                self._worker.end()


class Errands(Generic[Item]):
    """Does things one after the other in a thread of its own, which ends when nothing waits.

    Args:
        do: one of them.
        most: of them wait; those that wait longest are left. None: all.
        newest_first: what was added last comes first.
    """

    def __init__(
        self, do: Callable[[Item], None], *, most: int | None = None, newest_first: bool = False
    ) -> None:
        self._do, self._newest_first = do, newest_first
        self._waiting: deque[Item] = deque(maxlen=most)
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self.is_closed = False
        self.current: Item | None = None

    def add(self, item: Item) -> None:
        """Have something done; what waits already goes to the end."""
        with self._lock:
            if self.is_closed or item == self.current:
                return
            if item in self._waiting:
                self._waiting.remove(item)
            self._waiting.append(item)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, daemon=True)
                self._thread.start()

    def close(self, end: Callable[[], None]) -> None:
        """Do nothing more; `end` stops what is being done."""
        with self._lock:
            self.is_closed, thread = True, self._thread
        end()
        if thread is not None:
            thread.join()

    def _work(self) -> None:
        while True:
            with self._lock:
                self.current = None
                if self.is_closed or not self._waiting:
                    self._thread = None
                    return
                self.current = self._waiting.pop() if self._newest_first else self._waiting.popleft()
                item = self.current
            self._do(item)
