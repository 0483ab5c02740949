"""How a broken clause is reported: component, clause, values."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
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
        message = f"{type(component).__name__} breaks its contract: {clause}."
        raise AssertionError(f"{message} {given} raised {type(error).__name__}: {error}") from error
    require(bool(str(error).strip()), component, clause, f"{given} raised a ValueError without a message")


def close(one: float | None, other: float | None) -> bool:
    """Tell whether two numbers differ by rounding alone; None is equal to None."""
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=1e-5, abs_tol=1e-6)
