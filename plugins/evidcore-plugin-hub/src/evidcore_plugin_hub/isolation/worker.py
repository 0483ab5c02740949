"""The program beside a run that starts a process for each isolated component, and what that process does.

It imports what components stand on, once, and
forks for each pipe that it is sent. The fork waits for another one, in which the component is built and
asked, and tells how that ended. Each ends with the one that started it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import json
import os
import random
import resource
import signal
import socket
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pydantic  # noqa: F401  # tables are checked with it
import torch

from evidcore.case import Score, Unscored
from evidcore.contracts import Checked
from evidcore.errors import ContractError, EvidError
from evidcore.registry import factory, offers
from evidcore_plugin_hub.isolation.messages import ASKS, ENDED, FIXABLE, GIVES, HEAD, RAISED, Decoder, frame
from evidcore_plugin_hub.trust import pins

_DEATH_SIGNAL, _TAKES_ORPHANS, _NEW_PROCESS_TABLE = 1, 36, 0x20000000  # names of <sys/prctl.h>, <sched.h>
_MOST_LETTERS = 4000  # of a message, of a traceback
_libc = ctypes.CDLL(None)


def main(descriptor: int, parent: int) -> None:
    """Start a process for each pipe that the run sends; end the one of each number that it sends."""
    _libc.prctl(_DEATH_SIGNAL, signal.SIGKILL)
    _libc.prctl(_TAKES_ORPHANS, 1)
    if os.getppid() != parent:
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    control = socket.socket(fileno=descriptor)
    offers()  # reads what is installed
    gc.freeze()
    while True:
        word, pipes, _, _ = socket.recv_fds(control, 64, 1)
        if not word:
            return
        if pipes:
            number = os.fork()
            os.setpgid(number, number)  # on both sides, whichever comes first
            if not number:
                control.close()
                _watch(socket.socket(fileno=pipes[0]))
            os.close(pipes[0])
        else:
            number = int(word)
            os.killpg(number, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-number, 0):
                    pass  # one of its group
        control.sendall(str(number).encode())


def _watch(pipe: socket.socket) -> None:
    """Have a fork serve, in a process table of its own where that can be had, and tell how it ended."""
    _libc.prctl(_DEATH_SIGNAL, signal.SIGKILL)
    _libc.unshare(_NEW_PROCESS_TABLE)  # what is started in there ends with its first process, the fork
    if number := os.fork():
        status = os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])
        pipe.sendall(frame(ENDED, b"%d" % status))
        os._exit(0)
    _libc.prctl(_DEATH_SIGNAL, signal.SIGKILL)
    try:
        _Worker(pipe).serve()
    finally:
        os._exit(1)  # a stack below belongs to the first process


class _Worker:
    """The component, and the pipe to the run."""

    def __init__(self, pipe: socket.socket) -> None:
        self.pipe, self.component = pipe, None
        self._states: list[Any] = [None] * 3  # of the generators that training draws from
        self._read, self._decode = pipe.makefile("rb").read, Decoder()

    def serve(self) -> None:
        """Answer until the run closes the pipe."""
        own = os.getpid()
        while (request := self._take()) is not None:
            doing, given = request
            try:
                said = frame(GIVES, _written(self._do(doing, *given)))
            except BaseException as cause:  # the run tells what it means
                said = frame(RAISED, _written(_told(cause)))
            if os.getpid() != own:
                return  # a fork that came back would answer too
            self.pipe.sendall(said)

    def _take(self) -> Any:
        """Return the next message, None where the run closed the pipe."""
        head = self._read(HEAD.size)
        return self._decode(self._read(HEAD.unpack(head)[1])) if head else None

    def _do(self, doing: str, *given: Any) -> Any:
        if doing == "build":
            return self._build(*given)
        arguments, states = given
        self._states = [old if new is None else new for old, new in zip(self._states, states, strict=True)]
        python, numpys, torchs = self._states
        random.setstate(python)
        np.random.set_state(numpys)
        torch.set_rng_state(torch.frombuffer(bytearray(torchs), dtype=torch.uint8))
        return getattr(self.component, doing)(*arguments)

    def _build(
        self, path: Sequence[str], locks: Sequence[Path], environment: Mapping[str, str], memory_gb: float,
        kind: str, table: dict[str, Any], where: str, given: Mapping[str, Any], traits: Sequence[str],
    ) -> dict[str, Any]:  # fmt: skip
        sys.path[:] = path
        for lock in locks:
            pins.keep(lock)
        os.environ.update(environment)
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        most = pages * resource.getpagesize() + int(memory_gb * 1e9)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        own = {name: self._asking(name) if value is None else value for name, value in given.items()}
        self.component = factory.build(kind, table, given=own, where=where)
        return {name: getattr(self.component, name) for name in traits}

    def _asking(self, name: str) -> Any:
        """Return a function that asks the run, once."""

        @functools.cache
        def ask() -> Any:
            self.pipe.sendall(frame(ASKS, name.encode()))
            return self._take()

        return ask


def _written(value: Any) -> bytes:
    return json.dumps(value, default=_plain, ensure_ascii=False).encode("utf-8", "replace")


def _plain(value: Any) -> Any:
    """Return what JSON holds in place of a value."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Score):
        return value.value, value.parts, value.reason
    if isinstance(value, Unscored):
        return value.kind, value.reason
    if isinstance(value, Checked):
        return vars(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence | set | frozenset):
        return list(value)
    raise ContractError(f"must give plain data, got {type(value).__name__}")


def _told(cause: BaseException) -> dict[str, Any]:
    """Return what the run is told of an exception."""
    safe = cause.safe if isinstance(cause, EvidError) else ""
    return {
        "name": type(cause).__name__,
        "fixable": next((one.__name__ for one in type(cause).__mro__ if one.__name__ in FIXABLE), ""),
        "is_exit": not isinstance(cause, Exception),
        "has_cause": cause.__cause__ is not None,
        "safe": safe[:_MOST_LETTERS],
        "said": str(cause).removeprefix(safe)[:_MOST_LETTERS],
        "trace": traceback.format_exc()[-_MOST_LETTERS:],
    }


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
