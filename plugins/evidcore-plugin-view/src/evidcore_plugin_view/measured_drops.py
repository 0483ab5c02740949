"""The occlusion maps of a run, as `evid occlude` writes them: `RUN/occlusion/<stage>.jsonl`."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evidcore.runs.read import lines

Key = tuple[str, str]  # task, prompt


class MeasuredDrops:
    """Reads the maps of a stage when one is asked for, and again where the file is another."""

    def __init__(self, folder: Path) -> None:
        """Take the folder of a run."""
        self._folder = folder / "occlusion"
        self._held: dict[str, tuple[int, Mapping[Key, Mapping[str, Any]]]] = {}  # when the file was written
        self._lock = threading.Lock()

    def get(self, line: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return the map of an answer; None where there is none, or it is of another answer.

        Args:
            line: of `answers/<stage>.jsonl`, with its stage.

        Raises:
            RunError: if the file holds a line that is not JSON; names it.
        """
        path = self._folder / f"{line['stage']}.jsonl"
        if not path.is_file() or line.get("condition", "own") != "own":
            return None
        with self._lock:
            time_ns = path.stat().st_mtime_ns
            if self._held.get(path.name, (0, {}))[0] != time_ns:
                found = {(one["task"], one["prompt_id"]): one for one in lines(path)}
                self._held[path.name] = time_ns, found
            found_line = self._held[path.name][1].get((line["task"], line["prompt_id"]))
        return found_line if found_line is not None and found_line["text"] == line.get("text") else None
