"""Fill in what a table leaves out, from the signature of its component."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from evidcore.registry import find
from evidcore.registry.factory import Option, options, own_keys


def resolved(kind: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """Return `table` with every default filled in, as TOML values; a default of None stays away."""
    known = options(find(kind, table["use"]).load(), kind)
    full = {key: table[key] for key in table if key in own_keys(kind)}
    full |= resolved_options(known, {key: table[key] for key in table if key not in own_keys(kind)})
    return full


def resolved_options(known: Mapping[str, Option], table: Mapping[str, Any]) -> dict[str, Any]:
    """Return `table` with the defaults of `known`."""
    full: dict[str, Any] = {}
    for name, option in known.items():
        value = table.get(name, option.default)
        if value is None or value is inspect.Parameter.empty:
            continue
        if option.kind is not None and isinstance(value, Mapping):
            full[name] = resolved(option.kind, value)
        elif option.kind is not None and option.is_list:
            full[name] = [item if isinstance(item, str) else resolved(option.kind, item) for item in value]
        else:
            full[name] = _plain(value)
    return full


def _plain(value: Any) -> Any:
    """Return a default as a TOML value."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    return value if isinstance(value, bool | int | float | str) else str(value)
