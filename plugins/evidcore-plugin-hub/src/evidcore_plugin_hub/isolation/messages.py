"""What crosses between a run and an isolated component, in frames: a letter, a length and a text.

What goes to the component keeps its types. `marshal` writes it, faster than JSON and with the types of plain
data, and reads nothing but what a run wrote. What comes back is JSON, and whoever asked says which type it
must have; nothing in it names a class.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import marshal
import operator
import signal
import socket
import struct
import time
from collections.abc import Callable
from itertools import chain, count, islice
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np

from evidcore.case import Case, Prompt
from evidcore.case.read_only import ReadOnlyDict, ReadOnlyList
from evidcore.errors import ContractError, DataError, NotHere, PluginError, RecipeError, RunError

HEAD = struct.Struct(">cQ")
ASKS, ENDED, GIVES, RAISED, REQUEST = b"a", b"e", b"g", b"r", b"q"
FIXABLE = {
    form.__name__: form for form in (ContractError, DataError, NotHere, PluginError, RecipeError, RunError)
}

MOST_BYTES = 1 << 24  # of an answer
MOST_KEPT = 4096  # prompts and cases
_PLAIN = frozenset({str, int, float, bool, bytes, NoneType})
_SHARED = frozenset({Prompt, Case})  # many rollouts have the same: each is sent once
_LISTS: dict[type, int] = {tuple: -1, list: -2, ReadOnlyList: -3, frozenset: -4, set: -5}
_TABLES: dict[type, int] = {dict: -6, ReadOnlyDict: -7}
_KNOWN, _ARRAY, _PATH, _MIXED = -8, -9, -10, -11
_MADE = {code: form for forms in (_LISTS, _TABLES) for form, code in forms.items()}


def frame(kind: bytes, text: bytes) -> bytes:
    """Return a frame."""
    return HEAD.pack(kind, len(text)) + text


class Broken(Exception):
    """The other side wrote no message, or ended."""


class Pipe:
    """Reads and writes within a time. A process that was paused loses a second at most."""

    def __init__(self, channel: socket.socket, left_s: float) -> None:
        """Take the socket, and the seconds that all together may take."""
        self.channel, self.left_s = channel, left_s

    def write(self, data: bytes) -> None:
        """Write all of it."""
        view = memoryview(data)
        with contextlib.suppress(ConnectionError):  # whoever closed it is heard by `take`
            while view:
                view = view[self._within(self.channel.send, view) :]

    def take(self) -> tuple[bytes, bytes]:
        """Return the next message, its kind first."""
        kind, size = HEAD.unpack(self._read(HEAD.size))
        if kind not in (ASKS, ENDED, GIVES, RAISED):
            raise Broken("wrote into its pipe what is no message")
        if size > MOST_BYTES:
            raise Broken(f"gave {size} bytes, and {MOST_BYTES} are the most")
        text = self._read(size)
        if kind == ENDED:
            raise Broken(f"ended its process {_how(text)}")
        return kind, text

    def _read(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            some = self._within(self.channel.recv, min(size - len(found), 1 << 20))
            if not some:
                raise Broken("closed its pipe")
            found += some
        return bytes(found)

    def _within(self, act: Callable[[Any], Any], what: Any) -> Any:
        while self.left_s > 0:
            piece_s, start_s = min(1.0, self.left_s), time.monotonic()
            self.channel.settimeout(piece_s)
            try:
                return act(what)
            except ConnectionResetError:
                return b""
            except TimeoutError:
                continue
            finally:
                self.left_s -= min(piece_s, time.monotonic() - start_s)
        raise TimeoutError("no answer")


def _how(status: bytes) -> str:
    """Return in words how a process ended, by its exit status or the signal below 0."""
    try:
        number = int(status)
        return f"by {signal.Signals(-number).name}" if number < 0 else f"with status {number}"
    except ValueError:  # somebody else's words, or a signal without a name
        return "by a signal"


class Encoder:
    """Writes plain data and dataclasses as bytes that a `Decoder` reads back with every type.

    It goes by columns, one field of all rollouts after the other, since 64 steps of Python for a field take
    longer than one. A column is a list of plain data, or a tuple that begins with a code. Prompts and cases
    that the other side has are not sent again: it keeps them, as this one does.
    """

    def __init__(self) -> None:
        """Begin with nothing sent; so does the other side when it reads the first message."""
        self._classes: dict[type, int] = {}
        self._stored: dict[int, int] = {}  # by id
        self._kept: list[Any] = []  # so that an id stays theirs
        self._new: list[Any] = []

    def __call__(self, value: Any) -> bytes:
        """Return a message.

        Raises:
            TypeError: if something in it cannot cross; names its type.
        """
        if len(self._kept) > MOST_KEPT:
            self.__init__()  # type: ignore[misc]  # begins anew
        known, self._new = len(self._classes), []
        body = self._column([value])
        names = [_name(form) for form in list(self._classes)[known:]]
        return marshal.dumps((known, names, self._new, body))

    def _column(self, values: list[Any]) -> Any:
        forms = set(map(type, values))
        if forms <= _PLAIN:
            return values
        if len(forms) > 1:
            return self._mixed(values)
        (form,) = forms
        if form in _SHARED:
            return self._known(form, values)
        if form in _LISTS:
            return _LISTS[form], list(map(len, values)), self._column(list(chain.from_iterable(values)))
        if form in _TABLES:
            keys = self._column(list(chain.from_iterable(values)))
            each = self._column([one for table in values for one in table.values()])
            return _TABLES[form], list(map(len, values)), keys, each
        if dataclasses.is_dataclass(form):
            return self._fields(form, values)
        return self._others(form, values)

    def _mixed(self, values: list[Any]) -> tuple[Any, ...]:
        """Return values of several types: which each has, and a column of each."""
        forms = [None if type(one) in _PLAIN else type(one) for one in values]
        found: dict[Any, list[Any]] = {form: [] for form in forms}
        for form, one in zip(forms, values, strict=True):
            found[form].append(one)
        numbers = {form: number for number, form in enumerate(found)}
        return _MIXED, [numbers[form] for form in forms], list(map(self._column, found.values()))

    def _fields(self, form: type, values: list[Any]) -> tuple[Any, ...]:
        """Return dataclasses: the number of their class, how many they are, and a column for each field."""
        number = self._classes.setdefault(form, len(self._classes))
        columns = [[getattr(one, name) for one in values] for name in _field_names(form)]
        return number, len(values), list(map(self._column, columns))

    def _known(self, form: type, values: list[Any]) -> tuple[Any, ...]:
        """Return where the other side keeps each."""
        if new := {id(one): one for one in values if id(one) not in self._stored}:
            coded = self._fields(form, list(new.values()))  # first, since it may store others
            self._stored.update(zip(new, count(len(self._kept))))  # as many as there are
            self._kept += new.values()
            self._new.append(coded)
        return _KNOWN, [self._stored[id(one)] for one in values]

    def _others(self, form: type, values: list[Any]) -> Any:
        if issubclass(form, np.generic):
            return self._column([one.item() for one in values])
        if form is np.ndarray and all(one.dtype.kind in "biufc" for one in values):
            return _ARRAY, [(one.dtype.str, one.shape, one.tobytes()) for one in values]
        if issubclass(form, Path):
            return _PATH, list(map(str, values))
        raise TypeError(f"a {form.__name__} cannot cross to a process of its own")


class Decoder:
    """Makes values of what an `Encoder` wrote; imports classes, so it is for the component's side."""

    def __init__(self) -> None:
        """Begin with nothing received."""
        self._forms: list[type] = []
        self._store: list[Any] = []

    def __call__(self, message: bytes) -> Any:
        """Read back a message."""
        known, names, new, body = marshal.loads(message)
        if not known:
            self._forms, self._store = [], []
        self._forms += map(_form, names)
        for one in new:
            self._store += self._made(one)
        return self._made(body)[0]

    def _made(self, column: Any) -> list[Any]:
        if type(column) is list:
            return column
        code, what, *more = column
        if code >= 0:
            return _objects(self._forms[code], what, list(map(self._made, *more)))
        if code == _KNOWN:
            return [self._store[place] for place in what]
        if code == _ARRAY:
            return [np.frombuffer(data, kind).reshape(shape).copy() for kind, shape, data in what]
        if code == _PATH:
            return list(map(Path, what))
        if code == _MIXED:
            columns = [iter(self._made(one)) for one in more[0]]
            return [next(columns[number]) for number in what]
        form, each = _MADE[code], iter(self._made(more[0]))
        if code not in _TABLES.values():
            return [form(islice(each, size)) for size in what]
        values = iter(self._made(more[1]))
        return [form(zip(islice(each, size), islice(values, size), strict=True)) for size in what]


def _objects(form: type, size: int, columns: list[list[Any]]) -> list[Any]:
    """Return dataclasses with these fields. Their checks were made when the run built them."""
    made: list[Any] = [object.__new__(form) for _ in range(size)]
    names = _field_names(form)
    if form.__dictoffset__:
        for one, row in zip(made, zip(*columns, strict=True)):  # noqa: B905  # none where there is no field
            one.__dict__.update(zip(names, row, strict=True))
    else:
        for name, column in zip(names, columns, strict=True):
            for one, field in zip(made, column, strict=True):
                object.__setattr__(one, name, field)
    return made


@functools.cache
def _field_names(form: Any) -> tuple[str, ...]:
    return tuple(one.name for one in dataclasses.fields(form))


@functools.cache
def _name(form: type) -> str:
    if form.__module__ == "__main__" or "<" in form.__qualname__:
        raise TypeError(f"a {form.__qualname__} cannot cross: its class is in no module that can be imported")
    return f"{form.__module__}:{form.__qualname__}"


@functools.cache
def _form(name: str) -> type:
    module, _, place = name.partition(":")
    form: type = operator.attrgetter(place)(importlib.import_module(module))
    if not dataclasses.is_dataclass(form):
        raise TypeError(f"{name} is no dataclass")
    return form
