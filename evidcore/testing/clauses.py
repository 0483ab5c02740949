"""How a broken clause is reported: component, clause, values."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NoReturn


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


def require(holds: bool, component: object, clause: str, found: str) -> None:
    """Fail the check unless `holds`; see `broken`."""
    if not holds:
        broken(component, clause, found)


@contextlib.contextmanager
def raises_nothing(component: object, clause: str, given: str) -> Iterator[None]:
    """Turn any exception of the component into a broken clause, keeping its traceback."""
    try:
        yield
    except Exception as error:
        message = f"{type(component).__name__} breaks its contract: {clause}."
        raise AssertionError(f"{message} {given} raised {type(error).__name__}: {error}") from error


def refusal(component: object, clause: str, given: str, error: Exception | None) -> None:
    """Fail unless `error`, what a bad input raised, is a ValueError that says something."""
    if error is None:
        broken(component, clause, f"{given} was accepted")
    if not isinstance(error, ValueError):
        message = f"{type(component).__name__} breaks its contract: {clause}."
        raise AssertionError(f"{message} {given} raised {type(error).__name__}: {error}") from error
    require(bool(str(error).strip()), component, clause, f"{given} raised a ValueError without a message")
