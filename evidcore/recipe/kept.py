"""What components and stages take, kept from one process to the next.

A mistake in a recipe is then told before any component is imported, which takes seconds where one stands on
torch. What is kept belongs to the files of the installed packages as they are: a change of one ends it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import inspect
import json
import os
import typing
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from types import UnionType
from typing import Any

import annotated_types

from evidcore.cache import Cache
from evidcore.errors import PluginError, RunError
from evidcore.recipe import schema
from evidcore.registry import Offer, offers
from evidcore.registry.factory import Option, options_of

SIGNATURES = Cache("signatures")
_TYPES: Mapping[str, Any] = {
    **{form.__name__: form for form in (bool, int, float, str, tuple, list, dict, Mapping, Sequence)},
    "None": type(None),
    "Any": Any,
    "...": ...,
}
_NAMES = {form: name for name, form in _TYPES.items()}
_MARKS = {
    mark.__name__: mark
    for mark in (
        annotated_types.Ge, annotated_types.Gt, annotated_types.Le, annotated_types.Lt,
        annotated_types.MinLen, annotated_types.MaxLen, schema.Kind,
    )
}  # fmt: skip


class NotKept(Exception):
    """A component was never read, so nothing about its table can be told."""


class Imported:
    """Reads components and stages by importing them, and notes what they take."""

    def __init__(self) -> None:
        """Nothing was read yet."""
        self._notes: dict[str, Any] = {}

    def options(self, offer: Offer) -> Mapping[str, Option]:
        """Return the options of a component."""
        found = options_of(offer)
        self._notes[_name(offer)] = [
            [one.name, _written(one.type) if one.kind is None else one.kind, one.is_required, one.is_list]
            for one in found.values()
        ]
        return found

    def form(self, offer: Offer) -> Any:
        """Return the class of a stage.

        Raises:
            PluginError: if it is none.
        """
        form = offer.load()
        if not dataclasses.is_dataclass(form):
            raise PluginError(f"{offer}: must be a dataclass that is a Stage, got {form!r}.")
        self._notes[_name(offer)] = _written(form)
        return form

    def keep(self) -> None:
        """Keep what was read for the next process, where a file can be written."""
        packages = _packages()
        before = _kept(packages)
        if self._notes.keys() <= before.keys():
            return
        with contextlib.suppress(OSError, RunError):
            SIGNATURES.put(packages, json.dumps(before | self._notes).encode())


class Kept:
    """Reads what an earlier process noted, and imports nothing.

    Options of a stage that hang on its evaluations or its component are not known.
    """

    def __init__(self) -> None:
        """Read the notes, none where packages have changed since."""
        self._notes = _kept(_packages())

    def options(self, offer: Offer) -> Mapping[str, Option]:
        """Return the options of a component, without their defaults.

        Raises:
            NotKept: if no earlier process has read it.
        """
        return {
            name: Option(
                name=name, type=Any if kind else _read(hint), kind=kind, is_list=is_list,
                default=inspect.Parameter.empty if is_required else None,
            )
            for name, hint, is_required, is_list in self._of(offer)
            for kind in (hint if isinstance(hint, str) and hint not in _TYPES else None,)
        }  # fmt: skip

    def form(self, offer: Offer) -> Any:
        """Return a class with the fields of a stage.

        Raises:
            NotKept: as above.
        """
        return _read(self._of(offer))

    def _of(self, offer: Offer) -> Any:
        if _name(offer) not in self._notes:
            raise NotKept
        return self._notes[_name(offer)]


def _name(offer: Offer) -> str:
    return f"{offer.kind} {offer.package} {offer.target}"


def _kept(packages: str) -> dict[str, Any]:
    content = SIGNATURES.get(packages)
    return {} if content is None else dict(json.loads(content))


def _packages() -> str:
    """Return a hash of where the files of all packages lie, how large they are and when they were written."""
    digest = hashlib.sha256()
    for top in sorted({offer.target.partition(":")[0].partition(".")[0] for offer in offers()}):
        spec = find_spec(top)
        for root in (spec.submodule_search_locations or [str(spec.origin)]) if spec else ():
            for path in sorted(_programs(root)):
                with contextlib.suppress(OSError):  # a file that is gone
                    found = os.stat(path)
                    digest.update(f"{path} {found.st_size} {found.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _programs(root: str) -> Iterator[str]:
    """Yield the Python files of a package, or of a module that is one file."""
    if root.endswith(".py"):
        yield root
    for folder, _, names in os.walk(root):
        yield from (os.path.join(folder, name) for name in names if name.endswith(".py"))


def _written(hint: Any) -> Any:
    """Return a type as JSON; "Any" for what has no name here, and is left to whoever imports it."""
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        hints = typing.get_type_hints(hint, include_extras=True)
        fields = [
            [
                item.name,
                _written(hints[item.name]),
                item.default is item.default_factory is dataclasses.MISSING,
                bool(item.metadata.get("open")),
            ]
            for item in dataclasses.fields(hint)
        ]
        return {"table": hint.__name__, "fields": fields}
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return {"literal": inner}
    if origin is typing.Annotated:
        marks = [
            [type(mark).__name__, [getattr(mark, item.name) for item in dataclasses.fields(mark)]]
            for mark in inner[1:]
            if type(mark) in _MARKS.values()
        ]
        return {"marked": _written(inner[0]), "marks": marks}
    if origin in (typing.Union, UnionType):
        return {"union": [_written(item) for item in inner]}
    if origin in _NAMES:
        return {"of": _NAMES[origin], "parts": [_written(item) for item in inner]}
    try:
        return _NAMES.get(hint, "Any")
    except TypeError:  # no key
        return "Any"


def _read(hint: Any) -> Any:
    """Return the type that was written."""
    if isinstance(hint, str):
        return _TYPES[hint]
    if "table" in hint:
        return _table(hint["table"], hint["fields"])
    if "literal" in hint:
        return typing.Literal[tuple(hint["literal"])]
    if "marked" in hint:
        marks = tuple(_MARKS[name](*values) for name, values in hint["marks"])
        return typing.Annotated[(_read(hint["marked"]), *marks)] if marks else _read(hint["marked"])
    if "union" in hint:
        return typing.Union[tuple(_read(item) for item in hint["union"])]  # noqa: UP007  # of a list of types
    return _TYPES[hint["of"]][tuple(_read(item) for item in hint["parts"])]


def _table(name: str, fields: Sequence[tuple[str, Any, bool, bool]]) -> type:
    """Return a class with these fields, as a stage or a table of one has them."""
    made = []
    for key, hint, is_required, is_open in fields:
        default = dataclasses.MISSING if is_required else None
        made.append((key, _read(hint), dataclasses.field(default=default, metadata={"open": is_open})))
    known: dict[str, Option] | None = None if any(is_open for *_, is_open in fields) else {}
    namespace = {"open_keys": staticmethod(lambda table, around: known)}
    return dataclasses.make_dataclass(name, made, kw_only=True, namespace=namespace)
