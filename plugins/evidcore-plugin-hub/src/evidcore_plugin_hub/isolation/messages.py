"""What a run tells an isolated component: pickled, with the types that the run has.

Pickles go from the run to the component alone; what comes back is JSON (`evidcore_plugin_hub.worker`).
Prompts and cases are sent once, since many rollouts have the same and making one again costs as much as
judging its answers: both sides keep them in the order in which they were sent.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

from evidcore.case import Case, Prompt
from evidcore.case.read_only import ReadOnlyDict, ReadOnlyList

MOST_KEPT = 4096  # prompts and cases


class Encoder:
    """Pickles values; prompts and cases that the other side has become their number."""

    def __init__(self) -> None:
        """Begin with nothing sent; so does the other side when it reads the first message."""
        self._numbers: dict[int, int] = {}  # by id
        self.kept: list[Any] = []  # so that an id stays theirs
        self._new: list[bytes] = []

    def __call__(self, value: Any) -> bytes:
        """Return a message.

        Raises:
            PicklingError, TypeError, AttributeError: if something in it cannot cross.
        """
        if len(self.kept) > MOST_KEPT:
            self.__init__()  # type: ignore[misc]  # begins anew
        known, self._new = len(self.kept), []
        body = self._pickled(value)
        return pickle.dumps((known, self._new, body))

    def _pickled(self, value: Any) -> bytes:
        written = io.BytesIO()
        pickler = pickle.Pickler(written, protocol=5)
        pickler.dispatch_table = {  # for these types, before their own `__reduce__`
            Prompt: self._number,
            Case: self._number,
            ReadOnlyDict: lambda one: (ReadOnlyDict, (dict(one),)),  # by itself it becomes a plain one
            ReadOnlyList: lambda one: (ReadOnlyList, (list(one),)),
        }
        pickler.dump(value)
        return written.getvalue()

    def _number(self, one: Any) -> tuple[Any, ...]:
        if id(one) not in self._numbers:
            content = self._pickled((type(one), vars(one)))  # first, since it may keep others
            self._numbers[id(one)] = len(self.kept)
            self.kept.append(one)
            self._new.append(content)
        return _of_number, (self._numbers[id(one)],)


_store: list[Any] = []  # what this process was sent


def _of_number(number: int) -> Any:
    return _store[number]


def decode(message: bytes) -> Any:
    """Read back a message of the one `Encoder` that writes to this process."""
    known, new, body = pickle.loads(message)
    if not known:
        _store.clear()
    for content in new:
        form, fields = pickle.loads(content)
        one = object.__new__(form)  # its checks were made when the run built it
        one.__dict__.update(fields)
        _store.append(one)
    return pickle.loads(body)
