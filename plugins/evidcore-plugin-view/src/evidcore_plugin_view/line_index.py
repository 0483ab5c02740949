"""A JSON lines file that is never kept in memory: where each line starts, and a short row of each."""

from __future__ import annotations

import array
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from evidcore.errors import RunError

Line = Mapping[str, Any]
Row = dict[str, Any]


class LineIndex:
    """Reads each line once, keeps its offset and its row, and reads on when the file has grown.

    A last line without its end is being written and is left for the next time. A file that another one has
    replaced, as when a run resumes or moves a finished stage, is read anew.

    Args:
        path: the file; it may not exist yet.
        row: what is kept of a line.
    """

    def __init__(self, path: Path, row: Callable[[Line], Row]) -> None:
        self.path = path
        self._row = row
        self._lock = threading.Lock()
        self._identity: tuple[int, int] | None = None
        self._forget()

    def rows(self) -> Sequence[Row]:
        """Return the rows of all whole lines that the file holds now.

        Raises:
            RunError: if a line is not JSON; names the file and the line.
        """
        with self._lock:
            self._read_on()
            return list(self._rows)

    def line(self, number: int) -> Line:
        """Return a line, counted from 0.

        Raises:
            RunError: if there is no such line.
        """
        with self._lock:
            self._read_on()
            if not 0 <= number < len(self._starts):
                raise RunError(
                    f"{self.path}: has {len(self._starts)} lines, so no line {number} (counted from 0). "
                    "Choose one from the list again: the run may have been resumed."
                )
            with self.path.open("rb") as file:
                file.seek(self._starts[number])
                return self._parsed(file.readline(), number)

    def containing(self, words: str, texts: Callable[[Line], str]) -> list[int]:
        """Return the numbers of the lines in whose texts some words occur, whatever their case."""
        wanted = words.casefold()
        with self._lock:
            self._read_on()
            count = len(self._starts)
        result = []
        if count:
            with self.path.open("rb") as file:
                for number, raw in zip(range(count), file, strict=False):  # it may be cut meanwhile
                    if wanted in texts(self._parsed(raw, number)).casefold():
                        result.append(number)
        return result

    def _forget(self) -> None:
        self._starts = array.array("Q")
        self._rows: list[Row] = []
        self._end = 0

    def _read_on(self) -> None:
        if not self.path.is_file():
            self._forget()
            return
        state = self.path.stat()
        identity = (state.st_dev, state.st_ino)
        if identity != self._identity or state.st_size < self._end:
            self._identity = identity
            self._forget()
        if state.st_size == self._end:
            return
        with self.path.open("rb") as file:
            file.seek(self._end)
            for raw in file:
                if not raw.endswith(b"\n"):
                    return  # the run is writing this line right now
                self._rows.append(self._row(self._parsed(raw, len(self._rows))))
                self._starts.append(self._end)
                self._end += len(raw)

    def _parsed(self, raw: bytes, number: int) -> Line:
        remedy = "Remove the line or resume the run, then `evid view` again."
        try:
            line = json.loads(raw)
        except ValueError as cause:
            raise RunError(f"{self.path}, line {number + 1}: not JSON, {raw[:60]!r}. {remedy}") from cause
        if not isinstance(line, dict):
            raise RunError(f"{self.path}, line {number + 1}: must be an object, got {raw[:60]!r}. {remedy}")
        return line
