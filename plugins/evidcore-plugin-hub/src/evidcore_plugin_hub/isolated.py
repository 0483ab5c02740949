"""The component's side of an isolated component: built, and asked, in a process of its own."""

import functools
import os
import random
import resource
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import evidcore.contracts  # noqa: F401  # what a component is built as
from evidcore.registry import factory
from evidcore_plugin_hub.trust import pins


class Server:
    """The component, and what it may ask the run."""

    def __init__(self, ask: Callable[[str], Any]) -> None:
        """Take the function that asks the run."""
        self._ask, self._component = ask, None

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

    def call(self, method: str, given: Sequence[Any], states: tuple[Any, Any, bytes]) -> Any:
        """Have the component do something, with the random states of the run."""
        python, numpys, torchs = states
        random.setstate(python)
        np.random.set_state(numpys)
        torch.set_rng_state(torch.frombuffer(bytearray(torchs), dtype=torch.uint8))
        result = getattr(self._component, method)(*given)
        sys.stdout.flush()
        return result
