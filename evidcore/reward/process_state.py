"""What a call of a reward may not change: what it is shown, and the process that calls it."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence

import torch

from evidcore.case import Rollout, Verdict
from evidcore.compute.processes import rng_preserved

_LASTING = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}


def content(rollouts: Sequence[Rollout], earlier: Mapping[str, Sequence[Verdict]]) -> list[tuple[str, str]]:
    """Return what a reward is shown: of each part what a message calls it, and all that it holds, as text."""
    prompts = {id(item.prompt): item.prompt for item in rollouts}.values()
    result = [(f"prompt {item.id!r}", repr(item)) for item in prompts]
    for item in rollouts:
        rest = item.group, item.text, item.answer, item.turns, item.parent
        result.append((f"an answer to prompt {item.prompt.id!r}", repr(rest)))
    return result + [(f"the verdicts of {name!r}", repr(given)) for name, given in earlier.items()]


def changed(before: Sequence[tuple[str, str]], after: Sequence[tuple[str, str]]) -> str:
    """Return the name of what changed first, empty if nothing did."""
    return next((item[0] for item, other in zip(before, after, strict=True) if item != other), "")


@contextlib.contextmanager
def preserved_process_state() -> Iterator[None]:
    """Give the process back as it was: streams, random state, handlers of signals, timer, number of threads.

    What is printed inside goes to standard error.
    """
    is_main = threading.current_thread() is threading.main_thread()  # no other can set handlers
    handlers = {item: signal.getsignal(item) for item in _LASTING} if is_main else {}
    threads, timer_s = torch.get_num_threads(), signal.getitimer(signal.ITIMER_REAL)[0]
    try:
        with rng_preserved(), contextlib.redirect_stdout(sys.stderr), _output_redirected():
            yield
    finally:
        for number, handler in handlers.items():
            if handler is not None and signal.getsignal(number) is not handler:
                signal.signal(number, handler)
        if not timer_s:
            signal.setitimer(signal.ITIMER_REAL, 0)
        torch.set_num_threads(threads)


@contextlib.contextmanager
def killed_forks() -> Iterator[None]:
    """End a process that was forked inside, which would go on as a second run."""
    process = os.getpid()
    try:
        yield
    finally:
        if os.getpid() != process:
            os._exit(0)


@contextlib.contextmanager
def _output_redirected() -> Iterator[None]:
    """Send to standard error what programs and libraries in C write to standard output."""
    if sys.__stdout__ is None or sys.__stderr__ is None:  # closed before Python began
        yield
        return
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)
