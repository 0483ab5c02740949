"""Components of somebody's package: some behave, some do not."""

import ctypes
import os
import random
import re
import signal
import socket
import sys
import time

import numpy as np
import torch

from evidcore.case import Score, Unscored
from evidcore.contracts import Reader, Reward, Scorer
from evidcore.errors import DataError


def hangs_in_c():
    re.match(r"(a+)+$", "a" * 40 + "b")


def loops():
    while True:
        torch.ones(200).sum()


def eats_memory():
    kept = []
    while True:
        kept.append(bytearray(50_000_000))


def eats_memory_in_torch():
    torch.ones(4_000_000_000)


def stops():
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(60)


def pipes():
    """Return the sockets of this process: a component can find the pipe."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                found.append(int(name))
        except OSError:
            pass
    return found


def framed(message):
    return len(message).to_bytes(4, "big") + message


def writes_garbage():
    for one in pipes():
        os.write(one, b"\x80garbage that is no message at all" * 4)
    time.sleep(60)


def writes_a_gigabyte():
    block = b" " * 1_000_000
    for one in pipes():
        os.write(one, (1_000_000_000).to_bytes(4, "big") + b"g")
        for _ in range(1000):
            os.write(one, block)


def writes_deep():
    text = b"[" * 100_000
    for one in pipes():
        os.write(one, framed(b"g" + text))
    time.sleep(60)


def sends(kind, text):
    """Return what writes a message in place of the worker."""

    def act():
        for one in pipes():
            os.write(one, framed(kind + text))
        time.sleep(60)

    return act


def drips():
    for one in pipes():
        for byte in framed(b"g" + b" " * 1000):
            os.write(one, bytes([byte]))
            time.sleep(0.05)


def closes():
    for one in pipes():
        os.close(one)
    time.sleep(60)


def forks_and_hangs():
    if not os.fork():
        os.setsid()
        time.sleep(60)
    if not os.fork():
        time.sleep(60)
    time.sleep(60)


def comes_back_from_a_fork():
    os.fork()


ACTS = {
    "hangs in C": hangs_in_c,
    "loops": loops,
    "memory": eats_memory,
    "memory of torch": eats_memory_in_torch,
    "stops": stops,
    "garbage": writes_garbage,
    "a gigabyte": writes_a_gigabyte,
    "deep": writes_deep,
    "drips": drips,
    "asks for the model": sends(b"a", b"policy"),
    "asks for a path": sends(b"a", b"recipe_folder"),
    "says how it ended": sends(b"e", b"Jane Doe"),
    "closes": closes,
    "forks": forks_and_hangs,
    "comes back": comes_back_from_a_fork,
    "exits": lambda: os._exit(7),
    "raises exit": lambda: sys.exit(0),
    "faults": lambda: ctypes.string_at(0),
    "raises": lambda: {}["glossary.csv"],
    "data": lambda: (_ for _ in ()).throw(DataError("terms.csv: ", "is empty")),
}


class Planted(Reward):
    """Pays by the length of the text, and does what it is told before."""

    judges = frozenset({"report"})

    def __init__(self, *, act: str = "", gives: str = "scores", high: float = 1.0) -> None:
        self.act, self.gives = act, gives
        self.bounds = (-high, high)
        self.needs_earlier = ("first",)
        self.declared = {"malformed": "it is planted"}
        self.calls = 0

    def __call__(self, rollouts, earlier):
        self.calls += 1
        if self.act:
            ACTS[self.act]()
        return getattr(self, f"_{self.gives.replace(' ', '_')}")(rollouts, earlier)

    def _scores(self, rollouts, earlier):
        return [Score(value=0.5, parts={"letters": len(one.text)}, reason=one.text) for one in rollouts]

    def _kinds(self, rollouts, earlier):
        return [None, Unscored(kind="failed", reason="ü"), Score(value=np.float32(0.25))] * 2

    def _repr(self, rollouts, earlier):
        return [Score(value=0.0, reason=repr((one, earlier))) for one in rollouts]

    def _same(self, rollouts, earlier):
        same = {id(one.prompt) for one in rollouts}
        return [Score(value=float(len(same))) for _ in rollouts]

    def _calls(self, rollouts, earlier):
        return [Score(value=self.calls) for _ in rollouts]

    def _draws(self, rollouts, earlier):
        draw = random.random() + np.random.rand() + torch.rand(1).item()
        return [Score(value=draw / 3)] * len(rollouts)

    def _environment(self, rollouts, earlier):
        return [Score(value=0.0, reason="\n".join(f"{k}={v}" for k, v in sorted(os.environ.items())))] * 6

    def _processes(self, rollouts, earlier):
        return [Score(value=0.0, reason=f"{os.getpid()} {torch.get_num_threads()}")] * 6

    def _connects(self, rollouts, earlier):
        port = int(rollouts[0].text)
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError as cause:
            return [Score(value=0.0, reason=str(cause))]
        return [Score(value=1.0)]

    def _numbers(self, rollouts, earlier):
        return [0.5] * len(rollouts)

    def _a_text(self, rollouts, earlier):
        return "scores"

    def _a_generator(self, rollouts, earlier):
        return (one for one in ())

    def _a_word(self, rollouts, earlier):
        return [Score(value="much")] * 6

    def _a_wrong_kind(self, rollouts, earlier):
        return [Unscored(kind="later", reason="")] * 6

    def _not_a_number(self, rollouts, earlier):
        return [Score(value=float("nan"))] * 6

    def _a_tensor(self, rollouts, earlier):
        return [Score(value=0.0, parts={"a": torch.ones(2)})] * 6

    def _long(self, rollouts, earlier):
        return [Score(value=0.0, reason="x" * 20_000_000)]


class Asking(Reward):
    """Asks the run for what it knows."""

    def __init__(self, vocabulary, cases, recipe_folder, cache_folder) -> None:
        self.given = vocabulary, cases, recipe_folder, cache_folder

    def __call__(self, rollouts, earlier):
        vocabulary, cases, recipe_folder, cache_folder = self.given
        told = vocabulary(), [one.id for one in cases()], recipe_folder, cache_folder
        return [Score(value=0.0, reason=repr(told))]


class Borrowing(Reward):
    """Asks for what stays in the run's process."""

    def __init__(self, policy=None, *, scorer: Scorer, readers: tuple[Reader, ...] = ()) -> None:
        self.scorer = scorer

    def __call__(self, rollouts, earlier):
        return [Score(value=one) for one in self.scorer([one.text for one in rollouts], ["A"] * 6)]


class PlantedScorer(Scorer):
    """Compares lengths."""

    tells_denial = False

    def __init__(self, *, more: int = 0, needs_ready: bool = False) -> None:
        self.more, self.is_ready = more, not needs_ready

    def ready(self):
        self.is_ready = True

    def __call__(self, candidates, references, questions=None):
        assert self.is_ready
        pairs = [float(len(one) == len(other)) for one, other in zip(candidates, references, strict=True)]
        return [*pairs, *[None] * self.more]


class PlantedReader(Reader):
    """Says what it was asked."""

    deterministic = True

    def __call__(self, questions):
        return [f"{one.text} {len(one.crops)}" if one.text else None for one in questions]
