"""What crosses between a run and an isolated component: frames that hold JSON.

A frame is a letter for what it holds, the length, and the text. What goes to the component keeps its types:
each value is itself, or a list that begins with a code. What comes back is plain JSON, and whoever asked says
which type it must have; nothing in it names a class.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import functools
import importlib
import json
import operator
import signal
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from evidcore.case import Case, Prompt
from evidcore.case.read_only import ReadOnlyDict, ReadOnlyList
from evidcore.errors import ContractError, DataError, NotHere, PluginError, RecipeError, RunError

HEAD = struct.Struct(">cQ")
ASKS, ENDED, GIVES, RAISED, REQUEST = b"a", b"e", b"g", b"r", b"q"
FIXABLE = {
    form.__name__: form for form in (ContractError, DataError, NotHere, PluginError, RecipeError, RunError)
}

_JSON: TypeAdapter[Any] = TypeAdapter(
    Any, config={"ser_json_inf_nan": "constants"}
)  # three times as fast as json
MOST_BYTES = 1 << 24  # of an answer
MOST_KEPT = 4096  # prompts and cases
_PLAIN = frozenset({str, int, float, bool, NoneType})
_SHARED = frozenset({Prompt, Case})  # many rollouts have the same: each is sent once
_LISTS: dict[type, int] = {tuple: -1, list: -2, ReadOnlyList: -3, frozenset: -4, set: -5}
_TABLES: dict[type, int] = {dict: -6, ReadOnlyDict: -7}
_KNOWN, _BYTES, _ARRAY, _PATH = -8, -9, -10, -11
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
    """Writes plain data and dataclasses as JSON that a `Decoder` reads back with every type.

    Prompts and cases that the other side has are not sent again: it keeps them, as this one does.
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
        known = len(self._classes)
        body = self._coded(value)
        names = [_name(form) for form in list(self._classes)[known:]]
        message = [known, names, self._new, body]
        self._new = []
        try:
            return _JSON.dump_json(message)
        except ValueError:  # half a character, as a model may write it
            return json.dumps(message).encode()

    def _coded(self, value: Any) -> Any:
        form = type(value)
        if form in _PLAIN:
            return value
        if form in self._classes:
            return self._stored_once(value) if form in _SHARED else self._fields(form, value)
        if form in _LISTS:
            return [_LISTS[form], *map(self._coded, value)]
        if form in _TABLES:
            return [_TABLES[form], *map(self._coded, value), *map(self._coded, value.values())]
        if dataclasses.is_dataclass(form):
            self._classes[form] = len(self._classes)
            return self._coded(value)
        return self._other(value)

    def _fields(self, form: type, value: Any) -> list[Any]:
        """Return a dataclass: its number, and by name those of its fields that are not their defaults."""
        defaults, read = _reader(form)
        fields = {
            name: one if type(one) in _PLAIN else self._coded(one)
            for (name, default), one in zip(defaults, read(value))  # noqa: B905  # both of one class
            if one is not default
        }
        return [self._classes[form], fields]

    def _stored_once(self, value: Any) -> list[int]:
        if id(value) not in self._stored:
            coded = self._fields(type(value), value)  # first, since it may store others
            self._stored[id(value)] = len(self._kept)
            self._kept.append(value)
            self._new.append(coded)
        return [_KNOWN, self._stored[id(value)]]

    def _other(self, value: Any) -> Any:
        if isinstance(value, np.generic):
            return self._coded(value.item())
        if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
            data = base64.b64encode(value.tobytes()).decode()
            return [_ARRAY, value.dtype.str, self._coded(value.shape), data]
        if isinstance(value, bytes):
            return [_BYTES, base64.b64encode(value).decode()]
        if isinstance(value, Path):
            return [_PATH, str(value)]
        raise TypeError(f"a {type(value).__name__} cannot cross to a process of its own")


class Decoder:
    """Makes values of what an `Encoder` wrote; imports classes, so it is for the component's side."""

    def __init__(self) -> None:
        """Begin with nothing received."""
        self._forms: list[tuple[type, dict[str, Any]]] = []
        self._store: list[Any] = []

    def __call__(self, text: bytes) -> Any:
        """Read back a message."""
        known, names, new, body = json.loads(text)
        if not known:
            self._forms, self._store = [], []
        self._forms += map(_form, names)
        for one in new:
            self._store.append(self._made(one))
        return self._made(body) if type(body) is list else body

    def _made(self, coded: list[Any]) -> Any:
        code = coded[0]
        if code >= 0:
            form, defaults = self._forms[code]
            fields = defaults | coded[1]
            for name, one in coded[1].items():
                if type(one) is list:
                    fields[name] = self._store[one[1]] if one[0] == _KNOWN else self._made(one)
            made = object.__new__(form)  # its checks were made when the run built it
            if form.__dictoffset__:
                object.__setattr__(made, "__dict__", fields)
            else:
                for name, one in fields.items():
                    object.__setattr__(made, name, one)
            return made
        if code == _KNOWN:
            return self._store[coded[1]]
        each = [self._made(one) if type(one) is list else one for one in coded]
        del each[0]
        if code > _TABLES[dict]:
            return _MADE[code](each)
        if code >= _TABLES[ReadOnlyDict]:
            half = len(each) // 2
            return _MADE[code](zip(each[:half], each[half:], strict=True))
        if code == _ARRAY:
            return np.frombuffer(base64.b64decode(each[2]), each[0]).reshape(each[1]).copy()
        return Path(each[0]) if code == _PATH else base64.b64decode(each[0])


@functools.cache
def _reader(form: Any) -> tuple[tuple[tuple[str, Any], ...], Callable[[Any], Any]]:
    """Return the fields of a dataclass with their defaults, and what reads them all."""
    names = tuple((one.name, one.default) for one in dataclasses.fields(form))
    if len(names) > 1:
        return names, operator.attrgetter(*(name for name, _ in names))
    return names, lambda value: [getattr(value, name) for name, _ in names]


@functools.cache
def _name(form: type) -> str:
    if form.__module__ == "__main__" or "<" in form.__qualname__:
        raise TypeError(f"a {form.__qualname__} cannot cross: its class is in no module that can be imported")
    return f"{form.__module__}:{form.__qualname__}"


@functools.cache
def _form(name: str) -> tuple[type, dict[str, Any]]:
    """Return a dataclass with the defaults of its fields."""
    module, _, place = name.partition(":")
    form: type = operator.attrgetter(place)(importlib.import_module(module))
    if not dataclasses.is_dataclass(form):
        raise TypeError(f"{name} is no dataclass")
    fields = dataclasses.fields(form)
    return form, {one.name: one.default for one in fields if one.default is not dataclasses.MISSING}
