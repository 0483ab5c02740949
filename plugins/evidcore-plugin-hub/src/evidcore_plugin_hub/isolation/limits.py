"""What `isolated` in a component's table may say, and which components cannot be isolated."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from annotated_types import Gt, Le

from evidcore.errors import PluginError
from evidcore.registry import find
from evidcore.registry.factory import Mistake, arguments, check_options, options

CROSSING = ("recipe_folder", "cache_folder", "vocabulary", "cases")  # given to isolated components too


@dataclasses.dataclass(frozen=True, kw_only=True)
class Isolated:
    """Limits of a component in a process of its own; `isolated = true` takes these."""

    time_limit_s: Annotated[float, Gt(0), Le(86400)] = 60.0  # of a call
    memory_gb: Annotated[float, Gt(0), Le(10000)] = 4.0  # beside what the core itself takes


def limits_of(value: Any) -> Isolated:
    """Return the limits that a checked `isolated` stands for."""
    return Isolated(**arguments(Isolated, {} if value is True else value, "isolated"))


def resolved(value: Any) -> dict[str, Any]:
    """Return a checked `isolated` with its defaults."""
    return dataclasses.asdict(limits_of(value))


def check(kind: str, table: Mapping[str, Any], where: str) -> Iterator[Mistake]:
    """Yield what is wrong with `isolated` in a component's table."""
    value = table["isolated"]
    if isinstance(value, Mapping):
        for item in check_options(options(Isolated), value, where):
            yield dataclasses.replace(item, key=("isolated", *item.key))
    elif value is not True:
        text = f"must be true, false, or a table {{ time_limit_s = 60.0, memory_gb = 4.0 }}, got {value!r}."
        yield Mistake(where=where, key=("isolated",), text=text)
    with contextlib.suppress(PluginError):  # reported where the component is named
        for key, text in _staying(kind, table, ()):
            yield Mistake(where=where, key=key, text=text)


def _staying(
    kind: str, table: Mapping[str, Any], at: tuple[str | int, ...]
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield what a component needs that stays in the run's process: what the core gives it, and services."""
    offer = find(kind, str(table.get("use")))
    for item in inspect.signature(offer.load()).parameters.values():
        if item.kind is item.POSITIONAL_OR_KEYWORD and item.name not in CROSSING:
            text = f"not for {offer}: it asks the core for {item.name!r}, which stays in the run's process."
            yield at or ("isolated",), f"{text} Leave `isolated` out."
    for name, option in options(offer.load(), kind).items():
        value = table.get(name, option.default)
        each = [((*at, name), value)]
        if option.is_list and isinstance(value, list | tuple):
            each = [((*at, name, index), one) for index, one in enumerate(value)]
        for key, one in each if option.kind else ():
            if isinstance(one, str):
                text = f"service {one!r} stays in the run's process, and {offer} is isolated."
                yield key, f"{text} Give a table of its own, {{ use = … }}, or leave `isolated` out."
            elif isinstance(one, Mapping):
                if one.get("isolated"):
                    yield (*key, "isolated"), f"it is in the process of {offer} already. Leave it out here."
                yield from _staying(str(option.kind), one, key)
