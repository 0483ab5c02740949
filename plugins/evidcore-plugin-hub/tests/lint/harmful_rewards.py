"""Rewards that break their contract or change the process, and functions that end it."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading

import bad_rewards as bad

from evidcore.api import Score


class Harmful(bad.Planted):
    """Pays for the right letter, and does something besides."""

    bounds = (-1000.0, 1000.0)

    def __init__(self, act, **said):
        super().__init__(bad.is_right, **said)
        self.act = act

    def __call__(self, rollouts, earlier):
        done = self.act(rollouts)
        return super().__call__(rollouts, earlier) if done is None else done


def forces(rollouts):
    for item in rollouts:
        dict.__setitem__(item.prompt.reference, "letter", item.answer.lenient_choice)


def raises(kind):
    def act(rollouts):
        raise kind("planted")

    return act


def stays(rollouts):
    event = threading.Event()
    threading.Thread(target=event.wait, args=(5.0,)).start()


def forks(rollouts):
    if not os.fork():
        os._exit(0)


def ignores_a_signal(rollouts):
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)


def sets_environment(rollouts):
    os.environ["PLANTED"] = "1"


HARMFUL = {  # what it does: the act, the check that tells of it, and the outcome
    "rewrites the key by force": (forces, "contract", "alarm"),
    "raises": (raises(KeyError), "contract", "alarm"),
    "exits": (raises(SystemExit), "contract", "alarm"),
    "out of bounds": (lambda rollouts: [Score(value=1e6)] * len(rollouts), "contract", "alarm"),
    "prints": (lambda rollouts: sys.stdout.write("planted\n") and None, "process", "note"),
    "seeds": (lambda rollouts: random.seed(7), "process", "note"),
    "signals": (ignores_a_signal, "process", "alarm"),
    "a thread that stays": (stays, "process", "alarm"),
    "forks": (forks, "process", "alarm"),
    "environment": (sets_environment, "process", "alarm"),
}

ENDING = {  # source of a TRL function, and what is said of it
    "leaves": ("os._exit(0)", "ended its process with status 0"),
    "is killed": ("os.kill(os.getpid(), signal.SIGKILL)", "ended its process by SIGKILL"),
    "faults": ("ctypes.string_at(0)", "ended its process by SIGSEGV"),
    "never answers": ("re.match(r'(a+)+$', 'a' * 40 + 'b')", "has not answered for 90 s"),
}
SOURCE = """
import ctypes, os, re, signal

def planted(completions, **columns):
    {act}
    return [0.0 for _ in completions]
"""
