"""A program beside this one that does one thing at a time: what isolation, lint and the viewer start.

`Worker` starts `python -m evidcore_plugin_hub.worker`, which makes an object of the class that it is told and
calls the methods that it is asked for. What goes there is pickled, since this side wrote it. What comes back
is JSON, and whoever asks says of which type it must be: nothing that the program writes names a class here.
It ends with whoever started it, and at the limit of its time whatever it does.

Each has an interpreter of its own. A program that imports torch once and forks for each was tried: it starts
the second one sooner, and takes twice the code.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import importlib
import json
import math
import os
import pickle
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any

from evidcore.errors import ContractError

_HEAD = struct.Struct(">cQ")
_ASKS, _GIVES, _RAISED, _REQUEST = b"a", b"g", b"r", b"q"
MOST_BYTES = 1 << 24  # of an answer
_MOST_LETTERS = 4000  # of a message, of a traceback
_DEATH_SIGNAL, _NEW_PROCESS_TABLE = 1, 0x20000000  # names of <sys/prctl.h>, <sched.h>
_running: weakref.WeakSet[Worker] = weakref.WeakSet()


class Late(Exception):
    """It did not answer within its time, and was ended."""


class Broken(Exception):
    """It ended, or wrote what is no message. Has the status it ended with, below 0 a signal's number."""

    def __init__(self, says: str, status: int | None = None) -> None:
        super().__init__(says)
        self.status = status


@dataclasses.dataclass(frozen=True)
class Told:
    """What is told of an exception."""

    name: str
    lines: list[str]  # the names of its classes
    is_exit: bool
    has_cause: bool
    safe: str
    said: str
    trace: str

    def __post_init__(self) -> None:
        """Refuse what is no name: it is kept in STATUS."""
        if not re.fullmatch(r"\w{1,80}", self.name):
            raise ValueError("an exception's name has letters, digits and underscores")


class Raised(Exception):
    """What it was asked raised an exception, of which this tells."""

    def __init__(self, told: Told) -> None:
        super().__init__(f"{told.name}: {told.safe}{told.said}")
        self.told = told


class Worker:
    """A program that does one thing at a time, until it ends or is ended."""

    def __init__(
        self,
        serves: str,
        *,
        before: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        apart: bool = False,
        keeps_errors: bool = False,
        most_bytes: int = MOST_BYTES,
        encode: Callable[[Any], bytes] = pickle.dumps,
        given: Mapping[str, Any] | None = None,
    ) -> None:
        """Start it.

        Args:
            serves: `module:class` of what answers there; it is made with a function that asks this side.
            before: what stands before the program in its command.
            environment: of the program; None: this one's.
            apart: it has a process table of its own where that can be had, which ends with it.
            keeps_errors: what it prints is kept for `last_words`, and goes to standard error otherwise.
            most_bytes: of an answer.
            encode: writes what is asked, so that `decode` of the class reads it; else it is pickled.
            given: functions by name that it may ask for.
        """
        self._encode, self._given, self._lock = encode, given or {}, threading.RLock()
        self._most_bytes = most_bytes
        self._errors: IO[bytes] | None = tempfile.TemporaryFile() if keeps_errors else None  # noqa: SIM115
        if self._errors is not None:
            weakref.finalize(self, self._errors.close)  # it is read when the program has ended
        self._pipe, theirs = socket.socketpair()
        program = [sys.executable, "-P", "-m", __name__, str(theirs.fileno()), str(os.getpid())]
        with theirs:
            self.process = _starter(os.getpid()).submit(
                subprocess.Popen, [*before, *program, *(["apart"] if apart else [])],
                env=environment, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
                stdout=self._errors or 2, stderr=self._errors, start_new_session=True,
            ).result()  # fmt: skip
        self._end = weakref.finalize(self, _ended, self.process, self._pipe, os.getpid())
        _running.add(self)
        self._left_s = math.inf
        path = [entry or os.getcwd() for entry in sys.path]
        self._write(pickle.dumps((serves, path)))

    @property
    def is_running(self) -> bool:
        """Tell whether it can be asked, by the process that started it."""
        return self in _running

    def ask(self, doing: str, *given: Any, form: Any = None, limit_s: float = math.inf) -> Any:
        """Have it do something, and return what it gives.

        Args:
            doing: the name of a method.
            given: to the method.
            form: pydantic's adapter of the type that it must give; None: any JSON value.
            limit_s: of time. This process may be paused meanwhile: a pause takes a second of it at most.

        Raises:
            Late, Broken: as they say. It has ended then.
            ValidationError: if it gives something else; it has ended.
            Raised: if the method raised.
            TypeError, PicklingError: if what is given cannot cross; it has ended.
        """
        with self._lock, contextlib.ExitStack() as failing:
            failing.callback(self.end)
            self._left_s = limit_s
            try:
                self._write(self._encode((doing, given)))
                kind, text = self._take()
                while kind == _ASKS:
                    ask = self._given.get(text.decode("ascii", "replace"))
                    if not callable(ask):
                        raise Broken("asked for what it is not given")
                    self._write(self._encode(ask()))
                    kind, text = self._take()
            except TimeoutError as cause:
                raise Late(f"has not answered for {limit_s:g} s") from cause
            if kind == _RAISED:
                told = _told_form().validate_json(text, strict=True)
                failing.pop_all()
                raise Raised(told)
            found = json.loads(text) if form is None else form.validate_json(text, strict=True)
            failing.pop_all()
            return found

    def ends_by_itself(self, within_s: float) -> bool:
        """Let it come to its end; tell whether it did within a time, and end it else."""
        self._pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(within_s)
        ended = self.process.poll() is not None
        self.end()
        return ended

    def end(self) -> None:
        """End it and all that it started."""
        _running.discard(self)
        self._end()

    def last_words(self) -> str:
        """Return the last line that it printed."""
        if self._errors is None:
            return ""
        self._errors.seek(0)
        lines = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else ""

    def _write(self, text: bytes) -> None:
        left = memoryview(_HEAD.pack(_REQUEST, len(text)) + text)
        try:
            while left:
                left = left[self._within(self._pipe.send, left) :]
        except TimeoutError:
            raise
        except OSError:  # whoever closed it is heard by `_take`
            return

    def _take(self) -> tuple[bytes, bytes]:
        kind, size = _HEAD.unpack(self._read(_HEAD.size))
        if kind not in (_ASKS, _GIVES, _RAISED):
            raise Broken("wrote into its pipe what is no message")
        if size > self._most_bytes:
            raise Broken(f"gave {size} bytes, and {self._most_bytes} are the most")
        return kind, self._read(size)

    def _read(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            try:
                some = self._within(self._pipe.recv, min(size - len(found), 1 << 20))
            except TimeoutError:
                raise
            except OSError:  # it was reset, or another thread ended it
                some = b""
            if not some:
                try:
                    status = self.process.wait(None if self._left_s == math.inf else max(self._left_s, 0.0))
                except subprocess.TimeoutExpired:
                    raise TimeoutError from None
                raise Broken(f"ended its process {how_ended(status)}", status)
            found += some
        return bytes(found)

    def _within(self, act: Callable[[Any], Any], what: Any) -> Any:
        while self._left_s > 0:
            piece_s, start_s = min(1.0, self._left_s), time.monotonic()
            try:
                self._pipe.settimeout(piece_s)
                return act(what)
            except TimeoutError:
                continue
            finally:
                self._left_s -= min(piece_s, time.monotonic() - start_s)
        raise TimeoutError


@contextlib.contextmanager
def workers_ended() -> Iterator[None]:
    """End the workers of this program behind it."""
    try:
        yield
    finally:
        for one in list(_running):
            one.end()


def how_ended(status: int) -> str:
    """Return in words how a process ended, by its exit status or the signal below 0."""
    with contextlib.suppress(ValueError):  # a signal without a name
        return f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
    return "by a signal"


@functools.cache
def _starter(owner: int) -> ThreadPoolExecutor:
    """Return the thread that starts processes: one that a thread started is ended with that thread."""
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="worker")


def _ended(process: subprocess.Popen[bytes], pipe: socket.socket, owner: int) -> None:
    if os.getpid() == owner:  # a fork leaves it alone
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    pipe.close()  # last: whoever waits for an answer hears the end


@functools.cache
def _told_form() -> Any:
    """Return pydantic's adapter of `Told`; trusted answers do without pydantic."""
    from pydantic import TypeAdapter

    return TypeAdapter(Told)


def main(descriptor: int, parent: int, *, apart: bool) -> None:
    """Answer what is asked through a socket, until the other side closes it."""
    libc = ctypes.CDLL(None)
    libc.prctl(_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if not apart:
        _serve(socket.socket(fileno=descriptor))
        return
    libc.unshare(_NEW_PROCESS_TABLE)  # what is started in there ends with its first process, the fork
    if number := os.fork():
        os.close(descriptor)
        status = os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])
        if status < 0:  # end as it did
            with contextlib.suppress(OSError):
                signal.signal(-status, signal.SIG_DFL)
            os.kill(os.getpid(), -status)
        os._exit(status)
    libc.prctl(_DEATH_SIGNAL, signal.SIGKILL)
    try:
        _serve(socket.socket(fileno=descriptor))
    finally:
        os._exit(1)  # a stack below belongs to the first process


def _serve(pipe: socket.socket) -> None:
    own, read = os.getpid(), pipe.makefile("rb").read
    decode: Callable[[bytes], Any] = pickle.loads

    def take() -> Any:
        head = read(_HEAD.size)
        return decode(read(_HEAD.unpack(head)[1])) if len(head) == _HEAD.size else None

    def ask(name: str) -> Any:
        pipe.sendall(_HEAD.pack(_ASKS, len(name)) + name.encode())
        return take()

    def answer(act: Callable[[], Any]) -> None:
        try:
            kind, text = _GIVES, json.dumps(act(), default=_plain, ensure_ascii=False)
        except BaseException as cause:  # whoever asked tells what it means
            kind, text = _RAISED, json.dumps(vars(_told(cause)), ensure_ascii=False)
        if os.getpid() != own:
            os._exit(0)  # a fork that came back would answer too
        said = text.encode("utf-8", "replace")
        pipe.sendall(_HEAD.pack(kind, len(said)) + said)

    serves, path = take()
    sys.path[:] = [*path, *(entry for entry in sys.path if entry not in path)]
    module, _, name = serves.partition(":")
    failed: BaseException | None = None
    server: Any = None
    try:
        server = getattr(importlib.import_module(module), name)(ask)
        decode = getattr(server, "decode", decode)
    except BaseException as cause:
        failed = cause

    def act(doing: str, given: Sequence[Any]) -> Any:
        if failed is not None:
            raise failed
        return getattr(server, doing)(*given)

    while (request := take()) is not None:
        answer(functools.partial(act, *request))


def _plain(value: Any) -> Any:
    """Return what JSON holds in place of a value."""
    if hasattr(value, "tolist") and type(value).__module__ == "numpy":
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence | set | frozenset):
        return list(value)
    if hasattr(value, "__dataclass_fields__"):
        return dict(vars(value))
    raise ContractError(f"must give plain data, got {type(value).__name__}")


def _told(cause: BaseException) -> Told:
    safe = str(getattr(cause, "safe", ""))
    return Told(
        name=type(cause).__name__, lines=[one.__name__ for one in type(cause).__mro__],
        is_exit=not isinstance(cause, Exception), has_cause=cause.__cause__ is not None,
        safe=safe[:_MOST_LETTERS], said=str(cause).removeprefix(safe)[:_MOST_LETTERS],
        trace=traceback.format_exc()[-_MOST_LETTERS:],
    )  # fmt: skip


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), apart="apart" in sys.argv[3:])
