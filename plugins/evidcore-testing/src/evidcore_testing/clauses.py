"""How a broken clause is reported (component, clause, values); the check of what every kind promises."""

import contextlib
import functools
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

_REFUSED = ("open", "socket.", "subprocess.Popen", "os.system", "urllib.Request")
_watched: list[list[str]] = []  # the innermost watcher listens


class Clauses:
    """What a component must keep: an AssertionError names the component and the clause that it breaks."""

    def __init__(self, component: object) -> None:
        """Take the component, which messages name by its class."""
        self.name = type(component).__name__

    def __call__(self, holds: object, clause: str, got: object) -> None:
        """Fail unless a clause holds.

        Args:
            holds: whether it does.
            clause: what the contract demands, as a sentence.
            got: what the component did instead, with the values.
        """
        if not holds:
            self.fail(clause, got)

    def fail(self, clause: str, got: object, cause: BaseException | None = None) -> NoReturn:
        """Fail, keeping the traceback of what the component raised."""
        raise AssertionError(f"{self.name} breaks its contract: {clause}. {got}") from cause

    @contextlib.contextmanager
    def raises_nothing(self, clause: str, given: str) -> Iterator[None]:
        """Turn any exception of the component, or its exit, into a broken clause."""
        try:
            yield
        except (Exception, SystemExit) as error:
            self.fail(clause, f"{given} raised {type(error).__name__}: {error}", error)

    def refuses(
        self,
        clause: str,
        given: str,
        attempt: Callable[[], object],
        *,
        by: type[Exception] = ValueError,
        naming: str = "",
        always: bool = True,
    ) -> None:
        """Fail unless a bad input raises an error that says something.

        Args:
            clause: what the contract demands.
            given: the bad input, for the message.
            attempt: gives it to the component.
            by: which error must be raised.
            naming: what its message must hold.
            always: false where the input may also be accepted.
        """
        try:
            attempt()
        except Exception as error:
            says = isinstance(error, by) and str(error).strip() and naming in str(error)
            if not says:
                self.fail(clause, f"{given} raised {type(error).__name__}: {error}", error)
        else:
            self(not always, clause, f"{given} was accepted")


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
    got = f"It did: {', '.join(heard[:5])}"
    Clauses(first)(not heard, "construction reads no file and opens no socket", got)


@functools.cache
def _listen() -> None:
    """Install the audit hook, once: Python cannot take one away again."""

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        if _watched and event.startswith(_REFUSED):
            _watched[-1].append(f"{event} {arguments[:1]}")

    sys.addaudithook(hear)


def close(one: float | None, other: float | None) -> bool:
    """Tell whether two numbers differ by rounding alone; None is equal to None."""
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=1e-5, abs_tol=1e-6)
