"""Components of somebody's package: some behave, some do not."""

import contextlib
import itertools
import json
import os
import random
import re
import signal
import socket
import sys
import time
from pathlib import Path

import numpy as np
import torch

from evidcore.api import DataError, Reader, Reward, Score, Scorer, Unscored


def loops():
    while True:
        torch.ones(200).sum()


def stops():
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(60)


def pipes():
    """Return the sockets of this process: a component can find the pipe."""
    return [int(item.name) for item in Path("/proc/self/fd").iterdir() if item.is_socket()]


def framed(message):
    return len(message).to_bytes(4, "big") + message


def writes(message):
    """Return what writes a message in place of the worker."""

    def act():
        for item in pipes():
            os.write(item, message)
        time.sleep(60)

    return act


ERROR = {"name": "E", "classes": [], "is_exit": False, "has_cause": False, "message": "", "trace": ""}


def asks():
    while True:
        for item in pipes():
            os.write(item, framed(b"acases"))


def drips():
    for item in pipes():
        for byte in framed(b"g" + b" " * 1000):
            os.write(item, bytes([byte]))
            time.sleep(0.05)


def closes():
    for item in pipes():
        os.close(item)
    time.sleep(60)


def forks_and_hangs():
    if not os.fork():
        os.setsid()
        time.sleep(60)
    if not os.fork():
        time.sleep(60)
    time.sleep(60)


ACTS = {
    "hangs in C": lambda: re.match(r"(a+)+$", "a" * 40 + "b"), "loops": loops,
    "memory": lambda: [bytearray(50_000_000) for _ in itertools.count()],
    "memory of torch": lambda: torch.ones(4_000_000_000), "stops": stops,
    "garbage": writes(b"\x80garbage that is no message at all" * 4),
    "a gigabyte": writes((1_000_000_000).to_bytes(4, "big") + b"g"),
    "deep": writes(framed(b"g" + b"[" * 100_000)), "drips": drips,
    "asks for the model": writes(framed(b"apolicy")), "asks for a path": writes(framed(b"arecipe_folder")),
    "says how it ended": writes(framed(b"eJane Doe")), "closes": closes, "asks": asks,
    "a long error": writes(framed(b"r" + json.dumps({**ERROR, "safe": "s" * 9999}).encode())),
    "forks": forks_and_hangs, "comes back": os.fork, "exits": lambda: os._exit(7),
    "raises exit": lambda: sys.exit(0), "raises": lambda: {}["glossary.csv"],
    "data": lambda: (_ for _ in ()).throw(DataError("terms.csv: ", "is empty")),
}  # fmt: skip


def draws(*_):
    return random.random() + np.random.rand() + torch.rand(1).item()


def breaks_out(rollouts, *_):
    """Try what the fence is against; return what was done."""
    (folder, port), run = rollouts[0].text.split(":"), f"/proc/{sys.argv[2]}"
    each, done = [item for item in Path("/proc").iterdir() if item.name.isdecimal()], []
    tries = {
        "environ": lambda: Path(run, "environ").read_bytes(), "memory": Path(run, "mem").open,
        "files": lambda: os.readlink(f"{run}/fd/0"), "signal": lambda: os.kill(int(sys.argv[2]), 0),
        "variable": lambda: os.environ["HF_TOKEN"], "token": Path(folder, "token").read_text,
        "write": lambda: Path(folder, "written").write_text(""), "move": Path(folder, "moved").unlink,
        "link": lambda: os.link(f"{folder}/token", f"{os.environ['HOME']}/link"),
        "network": lambda: socket.create_connection(("127.0.0.1", int(port)), timeout=1).close(),
        **{f"environ of {item.name}": lambda item=item: (item / "environ").read_bytes().index(b"hf_secret")
           for item in each},
    }  # fmt: skip
    for name, act in tries.items():
        with contextlib.suppress(OSError, KeyError, ValueError):
            act()
            done.append(name.partition(" of ")[0] + "s" * (" of " in name))
    return [Score(value=0.0, reason=" ".join(sorted(set(done))))]


def environment():
    return "\n".join(f"{key}={text}" for key, text in sorted(os.environ.items()))


GIVES = {  # of rollouts, earlier verdicts and the number of the call
    "scores": lambda some, *_: [
        Score(value=0.5, parts={"letters": len(x.text)}, reason=x.text) for x in some
    ],
    "kinds": lambda *_: [None, Unscored(kind="failed", reason="ü"), Score(value=np.float32(0.25))] * 2,
    "repr": lambda some, earlier, _: [Score(value=0.0, reason=repr((one, earlier))) for one in some],
    "same": lambda some, *_: [Score(value=float(len({id(one.prompt) for one in some})))] * len(some),
    "calls": lambda some, _, call: [Score(value=call)] * len(some),
    "draws": lambda some, *_: [Score(value=draws() / 3)] * len(some),
    "environment": lambda some, *_: [Score(value=0.0, reason=environment())] * len(some),
    "breaks out": breaks_out,
    "numbers": lambda some, *_: [0.5] * len(some),
    "a text": lambda *_: "scores",
    "a generator": lambda *_: (one for one in ()),
    "a word": lambda *_: [Score(value="much")] * 6,
    "a wrong kind": lambda *_: [Unscored(kind="later", reason="")] * 6,
    "not a number": lambda *_: [Score(value=float("nan"))] * 6,
    "a tensor": lambda *_: [Score(value=0.0, parts={"a": torch.ones(2)})] * 6,
    "a huge number": lambda *_: [Score(value=10**400)] * 6,
    "a long key": lambda *_: [Score(value=0.0, parts={"k" * 1_000_000: "x"})] * 6,
    "long": lambda *_: [Score(value=0.0, reason="x" * 20_000_000)],
}


class Planted(Reward):
    """Pays by the length of the text, and does what it is told before."""

    judges = frozenset({"report"})

    def __init__(self, *, act: str = "", gives: str = "scores", high: float = 1.0) -> None:
        self.act, self.gives, self.bounds, self.requires = act, gives, (-high, high), ("first",)
        self.declared = {"malformed": "it is planted"}
        self.calls = 0

    def __call__(self, rollouts, earlier):
        self.calls += 1
        if self.act:
            ACTS[self.act]()
        return GIVES[self.gives](rollouts, earlier, self.calls)


class Asking(Reward):
    """Asks the run for what it knows."""

    def __init__(self, vocabulary, cases, recipe_folder, cache_folder) -> None:
        self.given = vocabulary, cases, recipe_folder, cache_folder

    def __call__(self, rollouts, earlier):
        vocabulary, cases, recipe_folder, cache_folder = self.given
        told = vocabulary(), [item.id for item in cases()], recipe_folder, cache_folder
        return [Score(value=0.0, reason=repr(told))]


class PlantedScorer(Scorer):
    """Compares lengths."""

    detects_negation = False

    def __init__(self, *, more: int = 0, needs_ready: bool = False) -> None:
        self.more, self.is_ready = more, not needs_ready

    def ready(self):
        self.is_ready = True

    def __call__(self, candidates, references, questions=None):
        assert self.is_ready
        pairs = [float(len(item) == len(other)) for item, other in zip(candidates, references, strict=True)]
        return [*pairs, *[None] * self.more]


class PlantedReader(Reader):
    """Says what it was asked."""

    deterministic = True

    def __call__(self, questions):
        return [f"{item.text} {len(item.crops)}" if item.text else None for item in questions]
