"""What components and stages take, kept as JSON schemas from one process to the next.

A mistake in a recipe is then told before any component is imported, which takes seconds where one stands on
torch. What is kept belongs to the files of the installed packages as they are: a change of one ends it.
"""

import contextlib
import dataclasses
import functools
import hashlib
import inspect
import json
import os
import typing
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Annotated, Any

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic.errors import PydanticInvalidForJsonSchema

from evidcore.cache import Cache
from evidcore.errors import RunError
from evidcore.registry import Offer, offers, places
from evidcore.registry.factory import Form
from evidcore.registry.signature import Kind, Option, reserved_keys

SIGNATURES = Cache("signatures")
_PLAIN = {"integer": int, "number": float, "string": str, "boolean": bool, "null": type(None)}
_BOUNDS: Mapping[str, Any] = {
    "minimum": Ge, "exclusiveMinimum": Gt, "maximum": Le, "exclusiveMaximum": Lt,
    "minLength": MinLen, "maxLength": MaxLen, "minItems": MinLen, "maxItems": MaxLen,
}  # fmt: skip


class CacheMiss(Exception):
    """A component was never read, so nothing about its table can be told."""


class CachedSignatures:
    """What earlier processes noted; nothing where packages have changed since."""

    def __init__(self) -> None:
        self._packages = _packages(places())
        content = SIGNATURES.get(self._packages)
        self._notes: dict[str, str] = {} if content is None else json.loads(content)

    def form(self, offer: Offer) -> Form:
        """Return the form of a table, without its defaults."""
        note = self._notes.get(_name(offer))
        if note is None or offer.apart:
            raise CacheMiss
        return _form(note, offer.kind)

    def keep(self, read: Mapping[Offer, Form]) -> None:
        """Keep what was read for the next process, where a file can be written."""
        notes = dict(self._notes)
        for offer, form in read.items():
            if _name(offer) not in notes and not form.is_open:
                with contextlib.suppress(PydanticInvalidForJsonSchema):  # told by importing it, each time
                    notes[_name(offer)] = json.dumps([form.schema, form.leaves_open])
        if notes.keys() != self._notes.keys():
            with contextlib.suppress(OSError, RunError):
                SIGNATURES.put(self._packages, json.dumps(notes).encode())


@functools.lru_cache(maxsize=1024)  # an ablation reads a recipe for each of its arms
def _form(text: str, kind: str) -> Form:
    (schema, leaves_open), reserved = json.loads(text), reserved_keys(kind) if kind != "stage" else ()
    keys = _keys(schema, schema.get("$defs", {}))
    form = Form(
        {name: item for name, item in keys.items() if name not in reserved},
        own={name: item for name, item in keys.items() if name in reserved},
        is_component=kind != "stage",
    )
    form.leaves_open = leaves_open
    return form


def _name(offer: Offer) -> str:
    return f"{offer.kind} {offer.package} {offer.target}"


@functools.lru_cache(maxsize=4)  # a process has its packages as they were when it imported them
def _packages(_: tuple[tuple[str, int], ...]) -> str:
    """Return a hash of where the files of all packages lie, how large they are and when they were written."""
    digest = hashlib.sha256()
    for top in sorted({offer.target.partition(":")[0].partition(".")[0] for offer in offers()}):
        spec = find_spec(top)
        for root in (spec.submodule_search_locations or [str(spec.origin)]) if spec else ():
            below = [os.path.join(folder, name) for folder, _, names in os.walk(root) for name in names]
            for path in sorted(path for path in (root, *below) if path.endswith(".py")):
                with contextlib.suppress(OSError):  # a file that is gone
                    status = os.stat(path)
                    digest.update(f"{path} {status.st_size} {status.st_ctime_ns}\n".encode())
    return digest.hexdigest()


def _keys(node: Mapping[str, Any], defs: Mapping[str, Any]) -> dict[str, Option]:
    empty, required = inspect.Parameter.empty, node.get("required", ())
    return {
        name: Option(name=name, type=_hint(inner, defs), default=empty if name in required else None)
        for name, inner in node["properties"].items()
    }


def _hint(node: Mapping[str, Any], defs: Mapping[str, Any]) -> Any:
    """Return a type that pydantic checks as a JSON schema says."""
    among: Any = tuple  # made of types that only the schema knows
    hint: Any = _PLAIN.get(node.get("type", ""), Any)
    if "$ref" in node:
        keys = _keys(defs[node["$ref"].rpartition("/")[2]], defs).values()
        made = [
            (key.name, key.type, dataclasses.field(default=dataclasses.MISSING if key.is_required else None))
            for key in keys
        ]
        return dataclasses.make_dataclass("Table", made, kw_only=True)
    if "x-component" in node:
        return Annotated[Any, Kind(**node["x-component"])]
    if "anyOf" in node:
        return typing.Union[tuple(_hint(item, defs) for item in node["anyOf"])]  # noqa: UP007  # of a list
    if "const" in node or "enum" in node:
        return typing.Literal[tuple(node.get("enum", (node.get("const"),)))]
    if "prefixItems" in node:
        return among[tuple(_hint(item, defs) for item in node["prefixItems"])]
    if node.get("type") == "array":
        hint = among[_hint(node.get("items", {}), defs), ...]
    if node.get("type") == "object":
        inner, among = node.get("additionalProperties"), Mapping
        hint = among[str, _hint(inner, defs) if isinstance(inner, Mapping) else Any]
    marks = [mark(node[bound]) for bound, mark in _BOUNDS.items() if bound in node]
    return Annotated[(hint, *marks)] if marks else hint
