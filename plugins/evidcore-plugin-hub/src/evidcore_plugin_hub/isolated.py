"""The component's side of an isolated component: built, and asked, in a process of its own."""

import contextlib
import functools
import inspect
import random
import resource
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic.errors import PydanticUserError
from pydantic_core import to_jsonable_python

import evidcore.contracts  # noqa: F401  # what a component is built as
from evidcore.api import find
from evidcore.errors import PluginError
from evidcore.registry import Offer, factory
from evidcore_plugin_hub.trust import pins

CROSSING = ("recipe_folder", "cache_folder", "vocabulary", "cases")  # given to isolated components too


class Server:
    """The component, and what it may ask the run."""

    def __init__(self, ask: Callable[[str], Any]) -> None:
        self._ask, self._component = ask, None

    def describe(
        self, locks: Sequence[Path], memory_gb: float, kind: str, table: dict[str, Any],
        services: Mapping[str, str] | None, is_elsewhere: bool,
    ) -> dict[str, Any]:  # fmt: skip
        """Load a component; return what it is and takes, and with services what is wrong with its table."""
        self._limit(locks, memory_gb)
        offer = find(kind, table["use"])
        result = {name: getattr(offer, name) for name in ("package", "version", "target")}
        result |= _installed(offer) if is_elsewhere else {"code": "", "versions": {}}
        from evidcore.cli import show

        known = factory.options(offer.load(), kind)
        parameters = inspect.signature(offer.load()).parameters.values()
        bare, wrong, full, schema = _plain(table), [], dict[str, Any](), dict[str, Any]()
        if services is not None:
            wrong += [(item.key, item.text) for item in factory.check(kind, bare, "", services)]
            with contextlib.suppress(PluginError):  # of one inside, which stands there already
                wrong += _needs_run(kind, table, ())
            full = {} if wrong else factory.Components(services).table(kind, bare)
        with contextlib.suppress(PydanticUserError, TypeError):  # not of every kind
            made: Any = offer.load()
            form = factory.form_of_class(made) if kind == "stage" else factory.form_of(made, kind)
            schema = form.schema
        return result | {
            "asks": [item.name for item in parameters if item.kind is item.POSITIONAL_OR_KEYWORD],
            "options": {
                name: {
                    "kind": item.kind, "is_list": item.is_list, "required": item.is_required,
                    "default": None if item.is_required else to_jsonable_python(item.default, fallback=str),
                }
                for name, item in known.items()
            },
            "listing": to_jsonable_python(show.described(offer), fallback=str), "form": schema,
            "wrong": wrong, "table": full,
        }  # fmt: skip

    def _limit(self, locks: Sequence[Path], memory_gb: float) -> None:
        """Compare with locks what is loaded from here on, and keep it within its memory."""
        for lock in locks:
            pins.keep(lock)
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        most = pages * resource.getpagesize() + int(memory_gb * 1e9)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))

    def build(
        self, locks: Sequence[Path], memory_gb: float, kind: str, table: dict[str, Any], where: str,
        given: Mapping[str, Any], traits: Sequence[str],
    ) -> dict[str, Any]:  # fmt: skip
        """Build the component within its limit of memory; return what it says of itself."""
        import torch  # noqa: F401  # is of the core's memory

        self._limit(locks, memory_gb)
        given = {
            name: functools.cache(functools.partial(self._ask, name)) if value is None else value
            for name, value in given.items()
        }
        self._component = factory.build(kind, table, given=given, where=where)
        return {name: getattr(self._component, name) for name in traits}

    def call(self, method: str, given: Sequence[Any], states: tuple[Any, Any, bytes]) -> Any:
        """Have the component do something, with the random states of the run."""
        import numpy as np
        import torch

        python, numpys, torchs = states
        random.setstate(python)
        np.random.set_state(numpys)
        torch.set_rng_state(torch.frombuffer(bytearray(torchs), dtype=torch.uint8))
        result = getattr(self._component, method)(*given)
        sys.stdout.flush()
        return result


def _installed(offer: Offer) -> dict[str, Any]:
    """Return the hash of a component's package, and the versions that may change its numbers."""
    from evidcore.runs import inputs

    versions = inputs.versions() | inputs.versions(inputs.requirements([offer]))
    return {"code": inputs.offer_hash(offer), "versions": versions}


def _plain(value: Any) -> Any:
    """Return a table whose inner tables have no `isolated`: of that the run has been told."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    is_table = isinstance(value, dict)
    return {key: _plain(item) for key, item in value.items() if key != "isolated"} if is_table else value


def _needs_run(kind: str, table: Mapping[str, Any], at: factory.Path) -> Iterator[tuple[factory.Path, str]]:
    """Yield what a component needs that stays in the run's process: what the core gives it, and services."""
    offer = find(kind, str(table.get("use")))
    for item in inspect.signature(offer.load()).parameters.values():
        if item.kind is item.POSITIONAL_OR_KEYWORD and item.name not in CROSSING:
            text = f"not for {offer}: it asks the core for {item.name!r}, which stays in the run's process."
            yield at or ("isolated",), f"{text} Leave `isolated` out."
    for name, option in factory.options(offer.load(), kind).items():
        value = table.get(name, option.default)
        each = [((*at, name), value)]
        if option.is_list and isinstance(value, list | tuple):
            each = [((*at, name, index), entry) for index, entry in enumerate(value)]
        for key, entry in each if option.kind else ():
            if isinstance(entry, str):
                text = f"service {entry!r} stays in the run's process, and {offer} is isolated."
                yield key, f"{text} Give a table of its own, {{ use = … }}, or leave `isolated` out."
            elif isinstance(entry, Mapping):
                if entry.get("isolated"):
                    yield (*key, "isolated"), f"it is in the process of {offer} already. Leave it out here."
                yield from _needs_run(str(option.kind), entry, key)
