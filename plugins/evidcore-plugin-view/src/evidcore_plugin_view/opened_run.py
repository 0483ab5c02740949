"""A run folder as the viewer reads it: its stages' answers and rollouts, line by line, while it may grow."""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from evidcore.errors import RunError, did_you_mean
from evidcore.runs.read import RunRecord, read_head
from evidcore.runs.read import lines as read_lines
from evidcore_plugin_view.background import CaseIndex, FollowedMasks, RunProcess, names_segmenter
from evidcore_plugin_view.line_index import Line, LineIndex, Row
from evidcore_plugin_view.public_lines import answer_row, group_row

Kind = Literal["answers", "rollouts"]


class OpenedRun:
    """One run that is looked at.

    Args:
        folder: what `evid run` wrote, or still writes.
        show_reports: whether reports of real patients may be shown.

    Raises:
        RunError: if the folder is not a run or a file in it cannot be read.
    """

    def __init__(self, folder: Path, *, show_reports: bool) -> None:
        self.folder = folder.resolve()
        self._read_at = self._status_time_ns()
        self.head: RunRecord = read_head(self.folder)
        self.cases = CaseIndex(self.folder, show_reports=show_reports)
        self.reader = RunProcess()
        self.has_segmenter = names_segmenter(self.head.recipe)
        self.followed = FollowedMasks(self.folder)
        self._indexes: dict[tuple[Kind, str], LineIndex] = {}
        self._looked_up: list[LineIndex] = []
        self._lock = threading.Lock()

    def read_again(self) -> None:
        """Read what a run has written since, if it trains or its STATUS is another."""
        told = self._status_time_ns()
        if self.head.status.get("state") == "running" or told != self._read_at:
            self._read_at = told
            self.head = read_head(self.folder)

    def _status_time_ns(self) -> int:
        path = self.folder / "STATUS"
        return path.stat().st_mtime_ns if path.exists() else 0

    def stages(self, kind: Kind) -> list[str]:
        """Return the stages that have answers or rollouts, in their order."""
        return sorted(path.stem for path in (self.folder / kind).glob("*.jsonl"))

    def index(self, kind: str, stage: str) -> LineIndex:
        """Return the lines of a stage.

        Raises:
            RunError: if the stage has none; names those that have.
        """
        if kind not in get_args(Kind):
            raise RunError(f"{self.folder}: lines are of {get_args(Kind)}, got {kind!r}.")
        known = self.stages(kind)  # type: ignore[arg-type]  # it was just compared
        if stage not in known:
            hint = did_you_mean(stage, known)
            raise RunError(
                f"{self.folder}: stage {stage!r} has no {kind}.{hint} "
                f"Stages with {kind}: {', '.join(known) or 'none'}."
            )
        with self._lock:
            key: tuple[Kind, str] = (kind, stage)  # type: ignore[assignment]
            if key not in self._indexes:
                results = [result for result in self.head.results if result.get("stage") == stage]
                rows = [row for result in results for row in result.get("rows") or ()]
                headlines = frozenset(str(row["metric"]) for row in rows if row.get("headline"))
                row_of = group_row if kind == "rollouts" else lambda line: answer_row(line, headlines)
                self._indexes[key] = LineIndex(self.folder / kind / f"{stage}.jsonl", row_of)
            return self._indexes[key]

    def rows(self, kind: str, stage: str) -> Sequence[Row]:
        """Return a row for each line of a stage."""
        return self.index(kind, stage).rows()

    def line(self, kind: str, stage: str, number: int) -> Line:
        """Return a line of a stage, which it names."""
        return {**self.index(kind, stage).line(number), "stage": stage}

    def occlusion(self, line: Line) -> Line | None:
        """Return the map that `evid occlude` made of an answer; None where there is none, or of another text.

        Args:
            line: of `answers/<stage>.jsonl`, with its stage.

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
            if index in self._looked_up:
                return
            self._looked_up.append(index)
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
        tables: Sequence[Mapping[str, Any]] = head.recipe.get("stage", ())
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
            "answers": [self._stage(stage, tables) for stage in self.stages("answers")],
            "rollouts": [self._stage(stage, tables) for stage in self.stages("rollouts")],
        }

    def _stage(self, stage: str, tables: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        number = stage.partition("-")[0]
        table = tables[int(number) - 1] if number.isdigit() and 0 < int(number) <= len(tables) else {}
        return {"stage": stage, "kind": str(table.get("kind", "")), "arm": str(table.get("arm") or "")}

    def close(self) -> None:
        """End what was started for it."""
        self.cases.close()
        self.reader.close()
        self.followed.close()


@functools.lru_cache(maxsize=8)
def _occlusion_maps(path: Path, time_ns: int) -> Mapping[tuple[str, str], Line]:
    """Return the maps of a stage by task and prompt, read again where the file is another."""
    return {(line["task"], line["prompt_id"]): line for line in read_lines(path)}


def _asked(stage: str, line: Line) -> dict[str, Any]:
    """Return what a line's case is looked up by."""
    return {"stage": stage, **{name: line.get(name) for name in ("task", "case_id", "images")}}
