"""How a process ends early: told to stop by a signal, or at a limit that nothing in Python can keep."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shlex
import signal
import threading
import time
from collections.abc import Callable, Iterator
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
        """Start without one."""
        self.signal = 0
        self._finishes = False

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        """Hear signals, where this is the main thread; others cannot."""
        is_main = threading.current_thread() is threading.main_thread()
        before = {one: signal.signal(one, self._hear) for one in SIGNALS} if is_main else {}
        try:
            yield
        finally:
            self.signal = 0
            for one, handler in before.items():
                signal.signal(one, handler)

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
            for one in SIGNALS:
                signal.signal(one, signal.SIG_DFL)
        elif self._finishes:
            self.signal = number
            # a log might be in the middle of a line
            os.write(2, b"told to stop: finishing this step and saving. Once more ends it at once.\n")
            return
        self.signal = self.signal or number
        raise Stopped(number)


stop_request = StopRequest()


def is_held(folder: Path) -> bool:
    """Tell whether a process runs a folder; the folder may be read-only."""
    try:
        with (folder / ".lock").open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


class _Event(ctypes.Structure):
    """C's `struct sigevent`, for a function that is called with a value in a thread of its own."""

    _fields_ = (
        ("value", ctypes.c_void_p), ("signal", ctypes.c_int), ("notify", ctypes.c_int),
        ("function", ctypes.c_void_p), ("rest", ctypes.c_byte * 40),
    )  # fmt: skip


class HangLimit:
    """Ends this process with status 2 once the thread that made it has computed for so long.

    While a call in C holds the interpreter's lock nothing in Python runs, neither other threads nor handlers
    of signals; timers of the C library go on. The first has a shell say why, the second ends the process. The
    thread's own time counts, so that a process that was paused loses none.
    """

    last_act: Callable[[str], str] | None = None  # a run's, while it goes on: returns a shell command

    def __init__(self, limit_s: float, said: str) -> None:
        """Set the timers; `said` is what the process ends with."""
        last = "" if HangLimit.last_act is None else HangLimit.last_act(said)
        command = f"printf '%s\\n' {shlex.quote(f'error: {said}')} >&2; {last}"
        self._command = ctypes.create_string_buffer(command.encode())  # kept while C may read it
        libc = self._libc = ctypes.CDLL(None)
        clock = time.pthread_getcpuclockid(threading.get_ident())
        self._timers = []
        for function, value, after_s in (
            (libc.system, ctypes.addressof(self._command), limit_s + 1),
            (libc._exit, 2, limit_s + 2),
        ):
            # 2: SIGEV_THREAD
            event = _Event(value=value, notify=2, function=ctypes.cast(function, ctypes.c_void_p))
            timer = ctypes.c_void_p()
            if libc.timer_create(clock, ctypes.byref(event), ctypes.byref(timer)):
                raise OSError("the C library makes no timer")
            self._timers.append(timer)
            spec = (ctypes.c_long * 4)(0, 0, int(after_s), int(after_s % 1 * 1e9))
            libc.timer_settime(timer, 0, spec, None)

    def lift(self) -> None:
        """Take the timers away; any thread may."""
        with contextlib.suppress(IndexError):  # another thread may do the same
            while True:
                self._libc.timer_delete(self._timers.pop())
