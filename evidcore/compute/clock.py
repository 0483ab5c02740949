"""Where time goes: seconds by named part, each second counted once, in the innermost part that is open."""

import contextlib
import time
from collections.abc import Callable, Iterator

import torch

REST = "other"  # what no part explains


class Clock:
    """Splits the time between two laps into parts, which add up to it.

    Parts lie in one another: while an inner one is open, the outer one stands still. Columns of a log are
    named `<part>_s`, and `reward_s/format` for the part `reward/format`.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._open: list[str] = []
        self._whole: list[str] = []
        self.restart()

    def restart(self) -> None:
        """Forget what was counted, and start a lap."""
        self._seconds: dict[str, float] = {}
        self._lap_start_s = self._counted_until_s = self._now()

    def enter(self, part: str) -> None:
        """Open a part."""
        self._count()
        self._open.append(part)

    def leave(self) -> None:
        """Close the part that was opened last."""
        self._count()
        self._open.pop()

    @contextlib.contextmanager
    def part(self, name: str, *, whole: bool = False) -> Iterator[None]:
        """Open a part for a `with` block.

        Where it is `whole`, what other parts take inside counts as its own.
        """
        self.enter(name)
        if whole:
            self._whole.append(name)
        try:
            yield
        finally:
            self.leave()
            if whole:
                self._whole.pop()

    def lap(self) -> dict[str, float]:
        """Return the seconds of each part since the last lap and of all (`step_s`), and start the next."""
        self._count()
        taken = {column(part): seconds for part, seconds in self._seconds.items()}
        taken["step_s"] = self._counted_until_s - self._lap_start_s
        self._seconds = {}
        self._lap_start_s = self._counted_until_s
        return taken

    def _count(self) -> None:
        now_s = self._now()
        part = self._whole[0] if self._whole else self._open[-1] if self._open else REST
        self._seconds[part] = self._seconds.get(part, 0.0) + now_s - self._counted_until_s
        self._counted_until_s = now_s


def clock_for(device: torch.device) -> Clock:
    """Return a clock; on a GPU each look at it waits until the GPU has done what it was asked.

    Else its work would count where somebody happens to wait for it first.
    """
    if device.type != "cuda":
        return Clock()

    def now() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return Clock(now)


def column(part: str) -> str:
    """Return a part's column in a log: `generate_s`, `reward_s/format`."""
    kind, _, name = part.partition("/")
    return f"{kind}_s/{name}" if name else f"{kind}_s"
