"""A run folder as the viewer reads it: its stages' answers and rollouts, line by line, while it may grow.

Files of lines are never kept in memory: only where each line starts, and a short row of each.
"""

from __future__ import annotations

import array
import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from evidcore_plugin_pages.record import Line, RunRecord, read_head

from evidcore.errors import RunError, did_you_mean
from evidcore.runs.read import lines as read_lines
from evidcore.runs.read import read_line
from evidcore_plugin_view.background import CaseIndex, FollowedMasks, RunProcess, names_segmenter
from evidcore_plugin_view.public_lines import Row, answer_row, group_row

KINDS = ("answers", "rollouts")


class OpenedRun:
    """One run that is looked at; reports of real patients where `show_reports` says so.

    Raises:
        RunError: if the folder is not a run or a file in it cannot be read.
    """

    def __init__(self, folder: Path, *, show_reports: bool) -> None:
        self.folder = folder.resolve()
        self.head: RunRecord = read_head(self.folder)
        self._read_at = 0  # mtime of STATUS, in ns
        self.cases = CaseIndex(self.folder, show_reports=show_reports)
        self.reader = RunProcess()
        self.has_segmenter = names_segmenter(self.head.recipe)
        self.followed = FollowedMasks(self.folder)
        self._indexes: dict[tuple[str, str], LineIndex] = {}
        self._looked_up: set[LineIndex] = set()
        self._lock = threading.Lock()

    def read_again(self) -> None:
        """Read what a run has written since, if it trains or its STATUS is another."""
        written_at = max((path.stat().st_mtime_ns for path in self.folder.glob("STATUS")), default=0)
        if self.head.status.get("state") == "running" or written_at != self._read_at:
            self._read_at, self.head = written_at, read_head(self.folder)

    def stages(self, kind: str) -> list[str]:
        """Return the stages that have answers or rollouts, in their order."""
        return sorted(path.stem for path in (self.folder / kind).glob("*.jsonl"))

    def index(self, kind: str, stage: str) -> LineIndex:
        """Return the lines of a stage.

        Raises:
            RunError: if the stage has none; names those that have.
        """
        if kind not in KINDS:
            raise RunError(f"{self.folder}: lines are of {KINDS}, got {kind!r}.")
        known = self.stages(kind)
        if stage not in known:
            what = f"stage {stage!r} has no {kind}.{did_you_mean(stage, known)}"
            listing = ", ".join(known) or "none"
            raise RunError(f"{self.folder}: {what} Stages with {kind}: {listing}.")
        with self._lock:
            if (kind, stage) not in self._indexes:
                results = [result for result in self.head.results if result.get("stage") == stage]
                rows = [row for result in results for row in result.get("rows") or ()]
                headlines = frozenset(str(row["metric"]) for row in rows if row.get("headline"))
                row_of = group_row if kind == "rollouts" else lambda line: answer_row(line, headlines)
                self._indexes[kind, stage] = LineIndex(self.folder / kind / f"{stage}.jsonl", row_of)
            return self._indexes[kind, stage]

    def line(self, kind: str, stage: str, number: int) -> Line:
        """Return a line of a stage, which it names."""
        return {**self.index(kind, stage).line(number), "stage": stage}

    def occlusion(self, line: Line) -> Line | None:
        """Return the map that `evid occlude` made of an answer; None where there is none, or of another text.

        Raises:
            RunError: if the file holds a line that is not JSON; names it.
        """
        path = self.folder / "occlusion" / f"{line['stage']}.jsonl"
        if not path.is_file() or line.get("condition", "own") != "own":
            return None
        drops = _occlusion_maps(path, path.stat().st_mtime_ns).get((line["task"], line["prompt_id"]))
        return drops if drops is not None and drops["text"] == line.get("text") else None

    def look_up(self, kind: str, stage: str, number: int) -> None:
        """Have the case of a line looked up, and after it those of the other lines of its file."""
        index = self.index(kind, stage)
        self.cases.ask([_asked(stage, index.line(number))])
        with self._lock:
            is_first = index not in self._looked_up
            self._looked_up.add(index)
        if is_first:
            threading.Thread(target=self._look_up_all, args=(stage, index), daemon=True).start()

    def _look_up_all(self, stage: str, index: LineIndex) -> None:
        first: dict[tuple[str, str], int] = {}
        for number, row in enumerate(index.rows()):
            first.setdefault((row["task"], row["case"]), number)
        self.cases.ask([_asked(stage, index.line(number)) for number in first.values()])

    def is_phantom(self, line: Line) -> bool:
        """Tell whether a line's case was generated; one that no data set has told yet counts as a patient's.

        Where all data sets of a run generate phantoms, every case was.
        """
        case = self.cases.case(line)
        if case is not None:
            return case.phantom
        return bool(self.head.phantom_datasets()) and not self.head.real_datasets()

    def described(self) -> dict[str, Any]:
        """Return what a viewer's head says of the run."""
        head = self.head
        return {
            "name": head.name,
            "folder": self.folder.name,
            "seed": head.recipe.get("seed"),
            "state": str(head.status.get("state", "unknown")),
            "stage": str(head.status.get("stage", "")),
            "step": head.status.get("step", 0),
            "message": str(head.status.get("message", "")),
            "phantoms": list(head.phantom_datasets()),
            "real": list(head.real_datasets()),
            **{kind: [_described(stage, head) for stage in self.stages(kind)] for kind in KINDS},
        }

    def close(self) -> None:
        self.cases.close()
        self.reader.close()
        self.followed.close()


def _described(stage: str, head: RunRecord) -> dict[str, Any]:
    table = head.stage_table(stage)
    return {"stage": stage, "kind": str(table.get("kind", "")), "arm": str(table.get("arm") or "")}


@functools.lru_cache(maxsize=8)
def _occlusion_maps(path: Path, time_ns: int) -> Mapping[tuple[str, str], Line]:
    """Return the maps of a stage by task and prompt, read again where the file is another."""
    return {(line["task"], line["prompt_id"]): line for line in read_lines(path)}


def _asked(stage: str, line: Line) -> dict[str, Any]:
    """Return what a line's case is looked up by."""
    return {"stage": stage, **{name: line.get(name) for name in ("task", "case_id", "images")}}


class LineIndex:
    """Reads each line once, keeps its offset and its row, and reads on when the file has grown.

    A last line without its end is being written and is left for the next time. A file that another one has
    replaced, as when a run resumes or moves a finished stage, is read anew, and it may not exist yet. `row`
    gives what is kept of a line.
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
                return read_line(self.path, number + 1, file.readline())

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
                    if wanted in texts(read_line(self.path, number + 1, raw)).casefold():
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
                self._rows.append(self._row(read_line(self.path, len(self._rows) + 1, raw)))
                self._starts.append(self._end)
                self._end += len(raw)
