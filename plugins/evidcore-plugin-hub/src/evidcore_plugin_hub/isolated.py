"""The component's side of an isolated component: built, and asked, in a process of its own.

A run pickles what it asks, with the types that the run has. Pickles go from the run to the component alone;
what comes back is JSON (`evidcore_plugin_hub.worker`). Prompts and cases are sent once, since many rollouts
have the same and making one again costs as much as judging its answers: both sides keep them in the order in
which they were sent.
"""

from __future__ import annotations

import functools
import io
import os
import pickle
import random
import resource
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import evidcore.contracts  # noqa: F401  # what a component is built as
from evidcore.api import Case, Prompt
from evidcore.case.read_only import ReadOnlyDict, ReadOnlyList
from evidcore.registry import factory
from evidcore_plugin_hub.trust import pins

MOST_SENT = 4096  # prompts and cases


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, number: Callable[[Any], int]) -> None:
        super().__init__(file, protocol=5)
        self._number = number
        self.dispatch_table = {  # by themselves they become plain ones
            ReadOnlyDict: lambda item: (ReadOnlyDict, (dict(item),)),
            ReadOnlyList: lambda item: (ReadOnlyList, (list(item),)),
        }

    def persistent_id(self, value: Any) -> int | None:
        return self._number(value) if type(value) in (Prompt, Case) else None


class Encoder:
    """Pickles values; prompts and cases that the other side has become their number."""

    def __init__(self) -> None:
        """Begin with nothing sent; so does the other side when it reads the first message."""
        self._numbers: dict[int, int] = {}  # by id
        self.sent: list[Any] = []  # so that an id stays theirs
        self._new: list[bytes] = []

    def __call__(self, value: Any) -> bytes:
        """Return a message.

        Raises:
            PicklingError, TypeError, AttributeError: if something in it cannot cross.
        """
        if len(self.sent) > MOST_SENT:
            self.__init__()  # type: ignore[misc]  # begins anew
        known, self._new = len(self.sent), []
        body = self._pickled(value)
        return pickle.dumps((known, self._new, body))

    def _pickled(self, value: Any) -> bytes:
        written = io.BytesIO()
        _Pickler(written, self._number).dump(value)
        return written.getvalue()

    def _number(self, one: Any) -> int:
        if id(one) not in self._numbers:
            content = self._pickled((type(one).__name__, vars(one)))  # first, since it may number others
            self._numbers[id(one)] = len(self.sent)
            self.sent.append(one)
            self._new.append(content)
        return self._numbers[id(one)]


class Decoder:
    """Reads the messages of one `Encoder`."""

    def __init__(self) -> None:
        self.received: list[Any] = []

    def __call__(self, message: bytes) -> Any:
        """Return a value."""
        known, new, body = pickle.loads(message)
        if not known:
            self.received.clear()
        for content in new:
            name, fields = self._unpickled(content)
            item: Any = object.__new__({"Prompt": Prompt, "Case": Case}[name])  # the run made its checks
            item.__dict__.update(fields)
            self.received.append(item)
        return self._unpickled(body)

    def _unpickled(self, content: bytes) -> Any:
        reader = pickle.Unpickler(io.BytesIO(content))
        reader.persistent_load = self.received.__getitem__  # type: ignore[method-assign]
        return reader.load()


class Server:
    """The component, and what it may ask the run."""

    def __init__(self, ask: Callable[[str], Any]) -> None:
        """Take the function that asks the run."""
        self._ask, self._component = ask, None
        self._states: list[Any] = [None] * 3  # of the generators that training draws from
        self.decode = Decoder()

    def build(
        self, locks: Sequence[Path], environment: Mapping[str, str], memory_gb: float,
        kind: str, table: dict[str, Any], where: str, given: Mapping[str, Any], traits: Sequence[str],
    ) -> dict[str, Any]:  # fmt: skip
        """Build the component within its limit of memory; return what it says of itself."""
        for lock in locks:
            pins.keep(lock)
        os.environ.update(environment)
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        most = pages * resource.getpagesize() + int(memory_gb * 1e9)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        given = {
            name: functools.cache(functools.partial(self._ask, name)) if value is None else value
            for name, value in given.items()
        }
        self._component = factory.build(kind, table, given=given, where=where)
        return {name: getattr(self._component, name) for name in traits}

    def call(self, method: str, given: Sequence[Any], states: Sequence[Any]) -> Any:
        """Have the component do something, with the random states of the run; None for those that stayed."""
        self._states = [old if new is None else new for old, new in zip(self._states, states, strict=True)]
        python, numpys, torchs = self._states
        random.setstate(python)
        np.random.set_state(numpys)
        torch.set_rng_state(torch.frombuffer(bytearray(torchs), dtype=torch.uint8))
        result = getattr(self._component, method)(*given)
        sys.stdout.flush()
        return result
