"""A reward whose calls are watched: what they leave behind in the process."""

import contextlib
import io
import os
import random
import signal
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import thread as pools
from typing import Any

import numpy as np
import torch

from evidcore.api import Reward, Rollout
from evidcore.case import Verdict

_forks: list[None] = []  # one for each fork of this process
os.register_at_fork(after_in_parent=lambda: _forks.append(None))


class Watched(Reward):
    """A reward that writes into `left`, by name, what its calls leave behind."""

    def __init__(self, reward: Reward, left: dict[str, str]) -> None:
        self.reward, self.left = reward, left
        self.bounds, self.judges, self.compares_group = reward.bounds, reward.judges, reward.compares_group

    def __call__(self, rollouts: Sequence[Rollout], earlier: Mapping[str, Sequence[Verdict]]) -> Any:
        before, printed = _state(), io.StringIO()
        threads, process, forked = set(threading.enumerate()), os.getpid(), len(_forks)
        with contextlib.redirect_stdout(printed):
            verdicts = self.reward(rollouts, earlier)
        if os.getpid() != process:
            os._exit(0)
        after = _state()
        self.left |= {name: after[name] for name in after if after[name] != before[name]}
        if printed.getvalue():
            self.left["print"] = f"prints {printed.getvalue()[:60]!r} on standard output"
        pooled = set(pools._threads_queues)  # these end with the interpreter
        if any(not one.daemon for one in set(threading.enumerate()) - threads - pooled):
            self.left["thread"] = "leaves a thread running that keeps the process from ending"
        if len(_forks) > forked:
            self.left["fork"] = "forks the process"
        return verdicts


def _state() -> dict[str, str]:
    """Return what a call may not change, by name; a changed text says what was changed and to what."""
    handlers = [(one.name, signal.getsignal(one)) for one in signal.Signals]
    drawn = random.getstate(), np.random.get_state(legacy=False), torch.get_rng_state().sum()
    return {
        "random": f"draws from, or seeds, the random state of training ({hash(repr(drawn)):x})",
        "signals": f"sets handlers of signals: {handlers!r}",
        "timer": f"sets a timer: {signal.getitimer(signal.ITIMER_REAL)[0] > 0}",
        "folder": f"changes the working folder to {os.getcwd()!r}",
        "environment": f"changes environment variables ({hash(str(dict(os.environ))):x})",
        "threads": f"sets torch to {torch.get_num_threads()} threads",
        "default": f"sets torch's default to {torch.get_default_dtype()}",
    }
