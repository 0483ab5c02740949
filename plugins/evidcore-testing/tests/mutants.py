"""A sound component with one clause broken, and the message that must name it."""

import pytest


def altered(base, **members):
    """Return a class with other members."""
    return type("Mutant", (base,), members)


def changing(base, method, change):
    """Return a class one of whose methods has its result changed."""
    return altered(base, **{method: lambda self, *given: change(getattr(base, method)(self, *given))})


def begun(base, change):
    """Return a class whose objects are changed when they are built."""

    def init(self, *given):
        base.__init__(self, *given)
        change(self)

    return altered(base, __init__=init)


def caught(message):
    """Expect that a check fails with a message, which may leave out what stands between its parts."""
    return pytest.raises(AssertionError, match=rf"(?s)breaks its contract: .*{message}")
