"""The check of what every kind promises: construction reads no file and opens no socket."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

_REFUSED = ("open", "socket.", "subprocess.Popen", "os.system", "urllib.Request")
_watched: list[list[str]] = []  # the innermost watcher listens


@functools.cache
def _listen() -> None:
    """Install the audit hook, once: Python cannot take one away again."""

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        if _watched and event.startswith(_REFUSED):
            _watched[-1].append(f"{event} {arguments[:1]}")

    sys.addaudithook(hear)


def check_construction(build: Callable[[], object]) -> None:
    """Assert that building a component reads no file, opens no socket and starts no program.

    The first build is not watched: modules are imported by then.

    Args:
        build: gives a new component, as a recipe would build it.
    """
    first = build()
    _listen()
    heard: list[str] = []
    _watched.append(heard)
    try:
        build()
    finally:
        _watched.remove(heard)
    if heard:
        raise AssertionError(
            f"{type(first).__name__} breaks its contract: construction reads no file and opens no socket. "
            f"It did: {', '.join(heard[:5])}"
        )
