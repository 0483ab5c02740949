"""How a broken clause is reported (component, clause, values); the check of what every kind promises."""

from __future__ import annotations

import contextlib
import functools
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

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


def broken(component: object, clause: str, found: str) -> NoReturn:
    """Fail the check.

    Args:
        component: the object under test, named by its class.
        clause: what its contract demands, as a sentence.
        found: what it did instead, with the values.

    Raises:
        AssertionError: always; a test shows its message.
    """
    raise AssertionError(f"{type(component).__name__} breaks its contract: {clause}. {found}")


def fell(component: object, clause: str, given: str, error: BaseException) -> NoReturn:
    """Fail the check because the component raised; its traceback is kept."""
    result = f"{given} raised {type(error).__name__}: {error}"
    raise AssertionError(f"{type(component).__name__} breaks its contract: {clause}. {result}") from error


def require(holds: bool, component: object, clause: str, found: str) -> None:
    """Fail the check unless `holds`; see `broken`."""
    if not holds:
        broken(component, clause, found)


@contextlib.contextmanager
def raises_nothing(component: object, clause: str, given: str) -> Iterator[None]:
    """Turn any exception of the component, or its exit, into a broken clause, keeping its traceback."""
    try:
        yield
    except (Exception, SystemExit) as error:
        fell(component, clause, given, error)


def raised(attempt: Callable[[], object]) -> Exception | None:
    """Return what `attempt` raises, None if it comes through."""
    try:
        attempt()
    except Exception as error:
        return error
    return None


def refusal(component: object, clause: str, given: str, attempt: Callable[[], object]) -> None:
    """Fail unless `attempt`, with a bad input, raises a ValueError that says something."""
    error = raised(attempt)
    if error is None:
        broken(component, clause, f"{given} was accepted")
    if not isinstance(error, ValueError):
        fell(component, clause, given, error)
    require(bool(str(error).strip()), component, clause, f"{given} raised a ValueError without a message")


def close(one: float | None, other: float | None) -> bool:
    """Tell whether two numbers differ by rounding alone; None is equal to None."""
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=1e-5, abs_tol=1e-6)
