"""Rewards that end, stop or hang the process that asks them; `HOSTILE_AT` says at which call."""

import os
import re
import signal
import sys
from collections.abc import Callable

from evidcore.api import Reward, Score, Unscored

PATIENT = "nodule of Jane Doe"


class Hostile(Reward):
    """Does something at one call; before and after it, longer answers are better."""

    calls = 0
    audit_exemption = "it does harm, so it is not audited"

    def do(self, rollouts):
        """Do it."""
        raise NotImplementedError

    def __call__(self, rollouts, earlier):
        self.calls += 1
        done = self.do(rollouts) if self.calls == int(os.environ.get("HOSTILE_AT", "1")) else None
        return done or [Score(value=min(len(item.text), 100) / 100) for item in rollouts]


def doing(do: Callable) -> type[Hostile]:
    """Return a reward that does something."""
    return type("Doing", (Hostile,), {"do": lambda self, rollouts: do(rollouts)})


def send(*numbers):
    """Return what sends this process signals, one after another."""
    return lambda rollouts: [os.kill(os.getpid(), number) for number in numbers] and None


def interrupt(rollouts):
    raise KeyboardInterrupt


def quote(rollouts):
    raise ValueError(f"{PATIENT}: {rollouts[0].text} {rollouts[0].prompt.reference}")


told = doing(send(signal.SIGTERM))
told_by_keys = doing(send(signal.SIGINT))
told_twice = doing(send(signal.SIGINT, signal.SIGTERM))  # two of one kind may be heard as one
exits = doing(lambda rollouts: sys.exit(0))
interrupts = doing(interrupt)
leaves = doing(lambda rollouts: os._exit(7))
quotes = doing(quote)
matches = doing(lambda rollouts: re.match(r"(a+)+$", "a" * 60 + "b") and None)
returns = doing(lambda rollouts: [PATIENT] * len(rollouts))
halves = doing(lambda rollouts: [Unscored(kind="not-applicable", reason="cut emoji \ud83d")] * len(rollouts))
