"""A process that is told to stop by a signal, and whether one runs a folder."""

import contextlib
import fcntl
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from evidcore.errors import Stopped

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopRequest:
    """Whether this process was told to stop, and by which signal; 0 where it was not.

    The first signal raises `Stopped`, but in `finishing_steps`, where it is for the trainer to heed after its
    step. The second raises in any case, and the third ends the process.
    """

    def __init__(self) -> None:
        self.signal = 0
        self._finishes = False

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Handle signals, where this is the main thread; others cannot."""
        is_main = threading.current_thread() is threading.main_thread()
        before = {item: signal.signal(item, self._hear) for item in SIGNALS} if is_main else {}
        try:
            yield
        finally:
            self.signal = 0
            for item, handler in before.items():
                signal.signal(item, handler)

    @contextlib.contextmanager
    def finishing_steps(self) -> Iterator[None]:
        """Let the trainer inside end its step and save it; then stop."""
        self._finishes = True
        try:
            yield
        finally:
            self._finishes = False
        if self.signal:
            raise Stopped(self.signal)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.signal:
            for item in SIGNALS:
                signal.signal(item, signal.SIG_DFL)
        elif self._finishes:
            self.signal = number
            # a log might be in the middle of a line
            os.write(2, b"told to stop: finishing this step and saving. Once more ends it at once.\n")
            return
        self.signal = self.signal or number
        raise Stopped(number)


stop_request = StopRequest()


def is_locked(folder: Path) -> bool:
    """Tell whether a process runs a folder; the folder may be read-only."""
    try:
        with (folder / ".lock").open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (FileNotFoundError, BlockingIOError) as cause:
        return isinstance(cause, BlockingIOError)
    return False
