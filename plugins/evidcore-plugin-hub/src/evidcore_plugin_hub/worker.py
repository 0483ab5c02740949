"""A program beside this one that does one thing at a time: what isolation, lint and the viewer start.

`Worker` starts `python -m evidcore_plugin_hub.worker`, which makes an object of the class that it is given
and calls the methods that it is asked for. Requests are pickled, since this side writes them. Answers are
JSON, and whoever asks says of which type they must be: nothing that the program writes names a class here.
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
import io
import json
import math
import os
import pickle
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import weakref
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from multiprocessing.connection import Connection
from typing import IO, Any

from evidcore.case.read_only import ReadOnlyDict, ReadOnlyList
from evidcore.errors import ContractError

PROTOCOL = f"1 of evidcore {metadata.version('evidcore')}"  # requests hold objects of its classes
# Begins a command that has no network and a process table of its own, which ends with it. `setpriv` ends
# `unshare` with the thread that started it, and that ends the rest.
FENCE = (
    "prlimit", "--core=0:0", "setpriv", "--pdeathsig", "KILL",
    "unshare", "--user", "--map-root-user", "--net", "--pid", "--fork", "--kill-child",
)  # fmt: skip
MOST_BYTES = 1 << 24  # of an answer
_ASKS, _GIVES, _RAISED = b"a", b"g", b"r"  # begin a message of the program
_MOST_LETTERS = 4000  # of a message, of a traceback
_DEATH_SIGNAL = 1  # of <sys/prctl.h>
_running: weakref.WeakSet[Worker] = weakref.WeakSet()


class Late(Exception):
    """It did not answer within its time, and was ended."""


class Broken(Exception):
    """It ended, or wrote what is no message. Has the status it ended with, below 0 a signal's number."""

    def __init__(self, says: str, status: int | None = None) -> None:
        super().__init__(says)
        self.status = status


@dataclasses.dataclass(eq=False)
class Raised(Exception):
    """The program raised an exception: what it was, in words."""

    name: str
    classes: list[str]  # the names of its classes, itself first
    is_exit: bool
    has_cause: bool
    safe: str
    message: str  # behind `safe`
    trace: str

    def __post_init__(self) -> None:
        """Refuse what is no name, and texts without end: they are kept in STATUS."""
        if not re.fullmatch(r"\w{1,80}", self.name):
            raise ValueError("an exception's name has letters, digits and underscores")
        if max(map(len, (self.safe, self.message, self.trace))) > _MOST_LETTERS:
            raise ValueError(f"an exception's texts have at most {_MOST_LETTERS} letters")

    def __str__(self) -> str:
        return f"{self.name}: {self.safe}{self.message}"


class _Pickler(pickle.Pickler):
    """Keeps what is read-only read-only; by itself it becomes plain."""

    dispatch_table: Mapping[type, Any] = {
        ReadOnlyDict: lambda item: (ReadOnlyDict, (dict(item),)),
        ReadOnlyList: lambda item: (ReadOnlyList, (list(item),)),
    }


def pickled(value: Any) -> bytes:
    """Return what the program reads."""
    written = io.BytesIO()
    _Pickler(written).dump(value)
    return written.getvalue()


class Worker:
    """A program that does one thing at a time, until it ends or is ended."""

    def __init__(
        self,
        serves: str,
        *,
        before: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        keeps_errors: bool = False,
        most_bytes: int = MOST_BYTES,
        given: Mapping[str, Any] | None = None,
        python: str = "",
    ) -> None:
        """Start it.

        Args:
            serves: `module:class` of what answers there; it is made with a function that asks this side.
            before: what begins its command, as `FENCE`.
            environment: of the program; None: this one's.
            keeps_errors: what it prints is kept for `last_words`, and goes to standard error otherwise.
            most_bytes: of an answer.
            given: functions by name that it may ask for.
            python: the interpreter of another environment, where it finds its modules; "": this one's.
        """
        self._given, self._lock = given or {}, threading.RLock()
        self._most_bytes = most_bytes
        self._errors: IO[bytes] | None = tempfile.TemporaryFile() if keeps_errors else None  # noqa: SIM115
        if self._errors is not None:
            weakref.finalize(self, self._errors.close)  # it is read when the program has ended
        ours, theirs = socket.socketpair()
        self._pipe = Connection(ours.detach())
        with theirs:
            program = [python or sys.executable, "-P", "-m", __name__]
            program += [str(theirs.fileno()), str(os.getpid()), PROTOCOL]
            self.process = _starter(os.getpid()).submit(
                subprocess.Popen, [*before, *program],
                env=environment, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
                stdout=self._errors or 2, stderr=self._errors, start_new_session=True,
            ).result()  # fmt: skip
        self._end = weakref.finalize(self, _end, self.process, self._pipe, os.getpid())
        _running.add(self)
        # an empty one is the folder that this process is in
        path = [entry for entry in sys.path if entry and not python]
        self._send((serves, path))

    @property
    def is_running(self) -> bool:
        """Tell whether it can be asked, by the process that started it."""
        return self in _running

    def ask(self, method: str, *given: Any, form: Any = None, limit_s: float = math.inf) -> Any:
        """Have it do something, and return what it gives.

        Args:
            method: of the object that it serves.
            given: to the method.
            form: pydantic's adapter of the type that it must give; None: any JSON value.
            limit_s: of time. This process may be paused meanwhile: a pause takes a second of it at most.

        Raises:
            Late, Broken: as they say. It has ended then.
            ValidationError: if it gives something else; it has ended.
            Raised: if the method raised.
            TypeError, PicklingError: if what is given cannot cross; it has ended.
        """
        with self._lock, contextlib.ExitStack() as failing, self._limited(limit_s):
            failing.callback(self.end)
            self._send((method, given))
            kind, text = self._receive()
            while kind == _ASKS:
                ask = self._given.get(text.decode("ascii", "replace"))
                if not callable(ask):
                    raise Broken("asked for what it is not given")
                self._send(ask())
                kind, text = self._receive()
            if kind == _RAISED:
                from pydantic import TypeAdapter  # trusted answers do without it

                raised = TypeAdapter(Raised).validate_json(text, strict=True)
                failing.pop_all()
                raise raised
            result = json.loads(text) if form is None else form.validate_json(text, strict=True)
            failing.pop_all()
            return result

    @contextlib.contextmanager
    def _limited(self, limit_s: float) -> Iterator[None]:
        """End the program where what is inside takes longer: whatever waits for it then goes on."""
        answered, is_late = threading.Event(), threading.Event()

        def watch() -> None:
            pieces = math.ceil(limit_s)
            if not any(answered.wait(limit_s / pieces) for _ in range(pieces)):
                is_late.set()
                _kill(self.process, self._pipe)

        watching = threading.Thread(target=watch, daemon=True)
        if limit_s < math.inf:
            watching.start()
        try:
            yield
        except Broken as cause:
            if is_late.is_set():
                raise Late(f"has not answered for {limit_s:g} s") from cause
            raise
        finally:
            answered.set()

    def _send(self, value: Any) -> None:
        message = pickled(value)
        with contextlib.suppress(OSError):  # `_receive` meets whoever closed it
            self._pipe.send_bytes(message)

    def _receive(self) -> tuple[bytes, bytes]:
        try:
            message = self._pipe.recv_bytes(self._most_bytes)
        except (EOFError, OSError) as cause:
            if isinstance(cause, OSError) and cause.args == ("bad message length",):
                raise Broken(f"gave more than {self._most_bytes} bytes") from None
            status = self.process.wait()  # it may have closed the pipe alone
            raise Broken(f"ended its process {how_ended(status)}", status) from None
        if message[:1] not in (_ASKS, _GIVES, _RAISED):
            raise Broken("wrote into its pipe what is no message")
        return message[:1], message[1:]

    def ends_by_itself(self, within_s: float) -> bool:
        """Let it come to its end; tell whether it did within a time, and end it else."""
        self._pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(within_s)
        has_ended = self.process.poll() is not None
        self.end()
        return has_ended

    def end(self) -> None:
        """End it and all that it started."""
        _running.discard(self)
        self._end()

    def last_words(self) -> str:
        """Return the last line that it printed."""
        if self._errors is None:
            return ""
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - _MOST_LETTERS))
        lines = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else ""


@contextlib.contextmanager
def workers_ended() -> Iterator[None]:
    """End the workers of this program behind it."""
    try:
        yield
    finally:
        for item in list(_running):
            item.end()


def how_ended(status: int) -> str:
    """Return in words how a process ended, by its exit status or the signal below 0."""
    with contextlib.suppress(ValueError):  # a signal without a name
        return f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
    return "by a signal"


@functools.cache
def _starter(owner: int) -> ThreadPoolExecutor:
    """Return the thread that starts processes: one that a thread started is ended with that thread."""
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="worker")


def _kill(process: subprocess.Popen[bytes], pipe: Connection) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(pipe.fileno())) as other:
        other.shutdown(socket.SHUT_RDWR)  # something that it started may still have its end


def _end(process: subprocess.Popen[bytes], pipe: Connection, owner: int) -> None:
    if os.getpid() == owner:  # a fork leaves it alone
        _kill(process, pipe)
        process.wait()
    pipe.close()


def main(descriptor: int, parent: int, protocol: str) -> None:
    """Answer what is asked through a socket, until the other side closes it."""
    if protocol != PROTOCOL:
        sys.exit(f"speaks protocol {PROTOCOL}, and was asked for {protocol}")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if os.getppid():  # 0: the first of a process table, which ends with it
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != parent:
            return
    pipe, owner = Connection(descriptor), os.getpid()

    def ask(name: str) -> Any:
        pipe.send_bytes(_ASKS + name.encode())
        return pickle.loads(pipe.recv_bytes())

    serves, path = pickle.loads(pipe.recv_bytes())
    sys.path[:] = [*path, *(entry for entry in sys.path if entry not in path)]
    module, _, name = serves.partition(":")
    failed: BaseException | None = None
    server: Any = None
    try:
        server = getattr(importlib.import_module(module), name)(ask)
    except BaseException as cause:
        failed = cause
    with contextlib.suppress(EOFError):
        while True:
            method, given = pickle.loads(pipe.recv_bytes())
            try:
                if failed is not None:
                    raise failed
                result = getattr(server, method)(*given)
                kind, text = _GIVES, json.dumps(result, default=_plain, ensure_ascii=False)
            except BaseException as cause:  # whoever asked tells what it means
                safe = str(getattr(cause, "safe", ""))
                raised = Raised(
                    name=type(cause).__name__, classes=[item.__name__ for item in type(cause).__mro__],
                    is_exit=not isinstance(cause, Exception), has_cause=cause.__cause__ is not None,
                    safe=safe[:_MOST_LETTERS], message=str(cause).removeprefix(safe)[:_MOST_LETTERS],
                    trace=traceback.format_exc()[-_MOST_LETTERS:],
                )  # fmt: skip
                kind, text = _RAISED, json.dumps(vars(raised), ensure_ascii=False)
            if os.getpid() != owner:
                os._exit(0)  # a fork that came back would answer too
            pipe.send_bytes(kind + text.encode("utf-8", "replace"))


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


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
