"""Write what a stage announces into the run folder: metrics.jsonl, and the judged rollouts."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from evidcore.cache import appearing
from evidcore.hooks import Announcer, observe
from evidcore.runs.folder import RunFolder
from evidcore.runs.read import lines


class Recorder:
    """Appends and flushes. A step that is announced again after a resume replaces what was written of it."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        own = [line for line in read_lines(folder.path / "metrics.jsonl") if not line.get("reused")]
        so_far_s = max((line.get("time_s", 0.0) for line in own), default=0.0)  # of the processes before
        self._start_s = time.monotonic() - so_far_s
        self._known: set[str] = set()

    @observe
    def step_finished(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        """Write a line of metrics.jsonl."""
        self._cut_once(stage, step)
        line = {"stage": stage, "step": step, "time_s": round(time.monotonic() - self._start_s, 3), **metrics}
        append(self._folder.path / "metrics.jsonl", [line])
        self._folder.set_status("running", stage=stage, step=step)

    @observe
    def rollouts_judged(self, stage: str, step: int, groups: Sequence[Mapping[str, Any]]) -> None:
        """Write a line for each group."""
        self._cut_once(stage, step)
        append(self._rollouts(stage), [{**group, "stage": stage, "step": step} for group in groups])

    def _rollouts(self, stage: str) -> Path:
        return self._folder.path / "rollouts" / f"{stage}.jsonl"

    def _cut_once(self, stage: str, step: int) -> None:
        """On a stage's first event, drop what a killed process had written from this step on."""
        if stage in self._known:
            return
        self._known.add(stage)

        def is_kept(line: Mapping[str, Any]) -> bool:
            return bool(line["stage"] != stage or line["step"] < step)

        for path in (self._folder.path / "metrics.jsonl", self._rollouts(stage)):
            rewrite(path, lambda line: line if is_kept(line) else None)


class StageEvents:
    """The announcer, bound to one stage: what a stage function is told to call."""

    def __init__(self, announcer: Announcer, stage: str) -> None:
        self._announcer, self._stage = announcer, stage

    def step_finished(self, step: int, metrics: Mapping[str, float]) -> None:
        """Announce the figures of a step."""
        self._announcer.step_finished(self._stage, step, metrics)

    def rollouts_judged(self, step: int, groups: Sequence[Mapping[str, Any]]) -> None:
        """Announce the judged groups of a step."""
        self._announcer.rollouts_judged(self._stage, step, groups)


def append(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    """Append lines of JSON and flush them; half a character of UTF-16 is written as JSON escapes it."""
    with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
        for line in lines:
            file.write(json.dumps(_finite(line), ensure_ascii=False) + "\n")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the whole lines of a JSON lines file; a last line that a kill cut short is left out."""
    return [*lines(path)]


def rewrite(path: Path, change: Callable[[dict[str, Any]], Mapping[str, Any] | None]) -> None:
    """Change or drop (None) each line of a file, which may not exist."""
    if not path.exists():
        return
    kept = [line for line in map(change, read_lines(path)) if line is not None]
    with appearing(path) as partial:
        append(partial, kept)


def _finite(value: Any) -> Any:
    """Return a value that JSON can hold: what is not a number becomes null, never 0."""
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
