"""Checks of what a reward does to the process, of its time, and of its contract."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import os
import random
import resource
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import thread as pools
from typing import Any

import numpy as np
import torch
from evidcore_testing import check_reward

from evidcore.case import Rollout, Verdict
from evidcore.contracts import Reward
from evidcore.reward.composer import NamedReward
from evidcore_plugin_hub.lint.reward_audit import ANSWER, Found
from evidcore_plugin_hub.lint.subject import Subject, regrouped

WORDS = ("emphysema ", "There is emphysema. ", "<think>", "[", "a")
SHORT, LONG = 1_000, 8_000  # characters
STEEP, SLOW_S = 24.0, 0.2  # linear is 8 times; quadratic 64
TRIES = 3
DEAR_S, MUCH_MIB = 0.05, 1024.0  # of an answer: 64 of them take 3 s of each step
TOLERATED_BOUND = 1e9  # where a function has none of its own
_forks: list[None] = []  # one for each fork of this process
os.register_at_fork(after_in_parent=lambda: _forks.append(None))


class Watched(Reward):
    """A reward, and what each of its calls left behind in the process."""

    def __init__(self, reward: Reward) -> None:
        self.reward, self.bounds, self.left = reward, reward.bounds, dict[str, str]()
        self.judges, self.compares_group = reward.judges, reward.compares_group

    def __call__(self, rollouts: Sequence[Rollout], earlier: Mapping[str, Sequence[Verdict]]) -> Any:
        """Ask it, and note what changed."""
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
        staying = set(threading.enumerate()) - threads - pooled
        if any(not one.daemon for one in staying):
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


CONTAINED = {"print", "random", "threads"}  # told, since training gives them back


def process(subject: Subject) -> Found:
    """A call leaves the process as it was."""
    watched = [dataclasses.replace(one, reward=Watched(one.reward)) for one in subject.rewards]
    golds = list(subject.of("right").values())
    Subject(watched, subject.rows).pay(regrouped([[gold] * 2 for gold in golds]))
    left: dict[str, str] = {}
    for one in watched:
        assert isinstance(one.reward, Watched)
        left |= one.reward.left
    if not left:
        return Found("fine", "leaves the process as it was")
    says = "; ".join(text[:160] for text in left.values())
    return Found("note" if left.keys() <= CONTAINED else "alarm", says)


class Bounded(Reward):
    """A reward without bounds of its own under some, so that the rest of its contract can be tried."""

    bounds = (-TOLERATED_BOUND, TOLERATED_BOUND)

    def __init__(self, reward: Reward) -> None:
        self.reward = reward

    def __call__(self, rollouts: Sequence[Rollout], earlier: Mapping[str, Sequence[Verdict]]) -> Any:
        """Ask it."""
        return self.reward(rollouts, earlier)


def contract(subject: Subject) -> Found:
    """Every clause of `evidcore_testing.check_reward` holds."""
    for one in subject.counted:
        before = [item for item in subject.rewards if item is not one and not item.weight]
        reward = one.reward if np.isfinite(one.reward.bounds).all() else Bounded(one.reward)
        good, bad = _twins(subject, one)
        if not good:
            continue
        try:
            check_reward(reward, good, bad, earlier=functools.partial(_earlier, before))
        except AssertionError as broken:
            name = type(reward.reward if isinstance(reward, Bounded) else reward).__name__
            said = str(broken).replace(f"{type(reward).__name__} breaks its contract: ", f"{name}: ", 1)
            return Found("alarm", said[:400])
    return Found("fine", "keeps every clause of check_reward")


def _earlier(rewards: Sequence[NamedReward], rollouts: Sequence[Rollout]) -> Mapping[str, Sequence[Verdict]]:
    found: dict[str, Sequence[Verdict]] = {}
    for one in rewards:
        found[one.name] = tuple(one.reward(rollouts, dict(found)))  # type: ignore[arg-type]
    return found


def _twins(subject: Subject, one: NamedReward) -> tuple[list[Rollout], list[Rollout] | None]:
    """Return right answers in groups of two, and worse ones where it says that it tells them apart."""
    judges, right = one.reward.judges, subject.of("right")
    worse = subject.of("wrong" if judges and judges & ANSWER else "malformed")
    needed = (item for item in subject.rewards if not item.weight)
    alone = Subject([*needed, dataclasses.replace(one, gate="")], subject.rows)
    paid = alone.pay(regrouped([[gold] for gold in right.values()])) if right else []
    places = [place for place, value in zip(right, paid, strict=True) if value is not None]
    tells = bool(judges and judges & {*ANSWER, "format"}) and not one.reward.compares_group
    if not tells or not all(place in worse for place in places) or set(one.reward.declared) & {"malformed"}:
        return regrouped([[right[place]] * 2 for place in places]), None
    good = regrouped([[right[place]] * 2 for place in places])
    return good, regrouped([[worse[place]] * 2 for place in places])


def time_by_length(subject: Subject) -> Found:
    """Judging takes time in proportion to the length of an answer."""
    steepest, slowest = 0.0, ""
    for word in WORDS:
        took = [_seconds(subject, (word * (count // len(word) + 1))[:count]) for count in (SHORT, LONG)]
        if took[1] > SLOW_S and took[1] / max(took[0], 1e-4) > steepest:
            steepest, slowest = (
                took[1] / max(took[0], 1e-4),
                f"{word!r} to {LONG} characters: {took[1]:.2f} s",
            )
    figures = {"times_as_long": steepest}
    if steepest > STEEP:
        says = f"{LONG // SHORT} times the length takes {steepest:.0f} times as long; repeating {slowest}"
        return Found("alarm", says, figures)
    return Found("fine", "takes time in proportion to the length of an answer", figures)


def _seconds(subject: Subject, text: str) -> float:
    """Return the CPU time of judging an answer of that text, the least of several tries.

    A busy machine disturbs that least. Each try has another text, since rewards keep what they have read.
    """
    row, took = subject.rows[0], []
    for number in range(TRIES):
        said = f"{text}{number}"
        one = Rollout(prompt=row.prompt, group=0, text=said, answer=row.task.parse(row.prompt, said))
        answer = dataclasses.replace(one.answer, think=said, report=one.answer.report and said)
        start = time.process_time()
        subject.pay([dataclasses.replace(one, answer=answer)] * 2)
        took.append(time.process_time() - start)
    return min(took)


def cost(subject: Subject) -> Found:
    """Tell what an answer costs."""
    golds = list(subject.of("right").values())
    rollouts = regrouped([[gold] * 8 for gold in golds])
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    subject.pay(rollouts)
    seconds = (time.process_time() - start) / len(rollouts)
    added = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    figures = {"seconds_per_answer": seconds, "added_memory_mib": added}
    says = f"{1000 * seconds:.2f} ms an answer, {added:.0f} MiB more at its peak"
    return Found("note" if seconds > DEAR_S or added > MUCH_MIB else "fine", says, figures)


PROCESS = {"contract": contract, "process": process, "time": time_by_length, "cost": cost}
