"""What benchmarks share: arms that take turns, medians with quartiles, the machine, one form of result.

A result is a JSON object with the claim, the command, the machine and `figures`, each a line of
docs/results/benchmarks/README.md.
"""

import argparse
import dataclasses
import json
import os
import platform
import shlex
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

_PACKAGES = ("torch", "transformers", "trl", "monai", "numpy")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Figure:
    """One measured figure: a median, with quartiles where there are several samples."""

    name: str
    value: float
    unit: str
    low: float | None = None
    high: float | None = None
    needed: str = ""
    is_met: bool | None = None  # None: nothing is needed

    def line(self) -> str:
        """Return it as text."""
        spread = "" if self.low is None else f"  ({self.low:.3g} to {self.high:.3g})"
        verdict = "" if self.is_met is None else f"  needed {self.needed}: {'yes' if self.is_met else 'NO'}"
        return f"  {self.name:52} {self.value:9.4g} {self.unit}{spread}{verdict}"


def figure(
    name: str,
    samples: Sequence[float],
    unit: str,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
) -> Figure:
    """Return the median of samples with their quartiles, held against a limit if there is one."""
    middle = statistics.median(samples)
    low = high = None
    if len(samples) > 2:
        low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
    needed, is_met = "", None
    if at_least is not None:
        needed, is_met = f"at least {at_least:g}", middle >= at_least
    if at_most is not None:
        needed, is_met = f"at most {at_most:g}", middle <= at_most
    return Figure(name=name, value=middle, unit=unit, low=low, high=high, needed=needed, is_met=is_met)


def ratios(slow: Iterable[float], fast: Iterable[float]) -> list[float]:
    """Return how many times `fast` each sample of `slow` is, of samples that were taken side by side."""
    return [item / other for item, other in zip(slow, fast, strict=True)]


def in_turn(
    arms: Mapping[str, Callable[[], Any]], rounds: int, now: Callable[[], float] = time.process_time
) -> dict[str, list[float]]:
    """Call each arm once a round, in an order that turns around; return the seconds of each call."""
    taken: dict[str, list[float]] = {name: [] for name in arms}
    for turn in range(rounds):
        for name in list(arms)[:: -1 if turn % 2 else 1]:
            start_s = now()
            arms[name]()
            taken[name].append(now() - start_s)
    return taken


class Turns:
    """Lets loops in threads of one process go on in turn, a step each, and counts the seconds of each step.

    One thread runs at a time, so the process's CPU time during a step is that of the step. Whole runs one
    after another would drift apart with the machine's load and temperature.
    """

    def __init__(
        self, arms: Mapping[str, Callable[[Callable[[], None]], Any]], now: Callable[[], float]
    ) -> None:
        """Take the arms.

        Args:
            arms: each a loop, which calls what it is given at the end of each of its steps.
            now: tells the time in seconds.
        """
        self._arms, self._now = arms, now
        self._waiting = list(arms)
        self._turn = threading.Condition()
        self._start_s = 0.0
        self._failure: BaseException | None = None
        self.seconds: dict[str, list[float]] = {name: [] for name in arms}

    def run(self) -> dict[str, list[float]]:
        """Run all arms; return the seconds of their steps, the first with what came before it."""
        threads = [
            threading.Thread(target=self._arm, args=(name, loop), name=name)
            for name, loop in self._arms.items()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._failure is not None:
            raise self._failure
        return self.seconds

    def _arm(self, name: str, loop: Callable[[Callable[[], None]], Any]) -> None:
        try:
            self._wait(name)
            loop(lambda: self._step(name))
        except BaseException as cause:  # raised again by `run`
            self._failure = self._failure or cause
        with self._turn:
            self._waiting.remove(name)
            self._turn.notify_all()

    def _step(self, name: str) -> None:
        self.seconds[name].append(self._now() - self._start_s)
        with self._turn:
            self._waiting.append(self._waiting.pop(0))
            self._turn.notify_all()
        self._wait(name)

    def _wait(self, name: str) -> None:
        with self._turn:
            self._turn.wait_for(lambda: self._waiting[0] == name)
        if self._failure is not None:
            raise RuntimeError(f"{name}: another arm failed")
        self._start_s = self._now()


def machine() -> dict[str, str]:
    """Return what was measured on, and with which versions."""
    import torch

    result = {
        "processor": _processor(),
        "cores": f"{len(os.sched_getaffinity(0))} cores, {torch.get_num_threads()} of them for torch",
        "system": f"{platform.system()} {platform.machine()}",
    }
    if torch.cuda.is_available():
        result["gpu"] = torch.cuda.get_device_name()
    versions = [f"Python {platform.python_version()}"]
    versions += [f"{name} {metadata.version(name)}" for name in _PACKAGES]
    return {**result, "versions": ", ".join(versions)}


def _processor() -> str:
    """Return the processor's name, as the system gives it."""
    told = Path("/proc/cpuinfo")
    lines = told.read_text(encoding="utf-8").splitlines() if told.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def parser(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of every benchmark."""
    options = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--json", action="store_true", help="print JSON")
    options.add_argument("--quick", action="store_true", help="see that it runs: small, few rounds")
    return options


def tell(
    doc: str | None, figures: Sequence[Figure], *, as_json: bool, details: Mapping[str, Any] | None = None
) -> None:
    """Print a result; the first paragraph of `doc` is the claim."""
    claim = " ".join((doc or "").strip().split("\n\n")[0].split())
    script = Path(sys.argv[0]).name
    given = [word for word in sys.argv[1:] if word != "--json"]
    command = shlex.join(["python", f"benchmarks/{script}", *given])
    if as_json:
        rows = [dataclasses.asdict(item) for item in figures]
        result = {"claim": claim, "command": command, "machine": machine(), "figures": rows}
        print(json.dumps({**result, "details": dict(details or {})}, indent=1))
        return
    print(claim)
    for key, value in machine().items():
        print(f"  {key}: {value}")
    for item in figures:
        print(item.line())
