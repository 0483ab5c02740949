"""`evidcore.Run`: what a run wrote, finished or not, as tables. Neither models nor torch are loaded."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from evidcore_plugin_pages.document import write_page
from evidcore_plugin_pages.markup import join, number, tag

from evidcore.hooks import write_pages
from evidcore.runs.read import read_head, read_status
from evidcore_plugin_audit.frames import answers_frame, metrics_frame, results_frame, rollouts_frame

if TYPE_CHECKING:
    from evidcore.runs.assembly import Assembly
    from evidcore.runs.folder import RunFolder
    from evidcore_plugin_audit.comparison import Comparison

State = tuple[tuple[str, int, int], ...]  # of files: name, time in ns, size in bytes
_INTERVAL = ("value", "low", "high")


class Run:
    """A run, finished or not. What it wrote is read when it is asked for, and again after it has changed."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Open a run.

        Raises:
            RunError: if the folder is none.
        """
        self.folder = Path(folder).resolve()
        read_head(self.folder)
        self._kept: dict[str, tuple[State, pd.DataFrame]] = {}

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"

    @property
    def status(self) -> Mapping[str, Any]:
        """Its state ("running", "finished", "failed", "interrupted", "gone"), stage, step and message."""
        return read_status(self.folder)

    @property
    def recipe(self) -> dict[str, Any]:
        """The recipe with every default, as tables: `run` takes them again."""
        return dict(read_head(self.folder).recipe)

    @property
    def results(self) -> pd.DataFrame:
        """Each figure with its interval: stage, name, metric, value, low, high and more."""
        return self._table("results", "results/*.json", results_frame)

    @property
    def answers(self) -> pd.DataFrame:
        """Each answer of each evaluation and audit: condition, case, question, text, its value and more."""
        return self._table("answers", "answers/*.jsonl", answers_frame)

    @property
    def rollouts(self) -> pd.DataFrame:
        """Each rollout: step, group, text, total, advantage, and `reward/<name>` for each reward."""
        return self._table("rollouts", "rollouts/*.jsonl", rollouts_frame)

    @property
    def metrics(self) -> pd.DataFrame:
        """The figures of training, by stage and step."""
        return self._table("metrics", "metrics.jsonl", metrics_frame)

    @property
    def verdict(self) -> dict[str, str]:
        """What the last audit says of each task; empty where none was run."""
        matches = [result["verdict"] for result in read_head(self.folder).results if result.get("verdict")]
        return dict(matches[-1]) if matches else {}

    @property
    def page(self) -> Path:
        """The evidence page; written now, where the run has none."""
        path = self.folder / "page" / "index.html"
        return path if path.is_file() else write_page(self.folder)

    def compare(
        self,
        other: Run | str | os.PathLike[str] | None = None,
        *,
        stage: str = "",
        before: str = "",
        metric: str = "",
    ) -> Comparison:
        """Compare answers question by question, as `evid compare` does; `frame()` gives the table.

        Args:
            other: a run whose answers are compared with this one's; None: the last evaluation of this run is
                compared with an earlier one.
            stage: the evaluation; empty: the last.
            before: what it is compared with; empty: the first that asked the same.
            metric: a figure of each answer; empty: the headline's.

        Raises:
            RunError: if nothing was asked on both sides.
        """
        from evidcore_plugin_audit.comparison import compared

        second = other.folder if isinstance(other, Run) else None if other is None else Path(other)
        return compared(self.folder, second, stage=stage, before=before, metric=metric)

    def resume(self, *, accept_changes: bool = False, progress: bool = True) -> Run:
        """Go on with a run that was interrupted or failed, to its end.

        Args:
            accept_changes: go on although code, data or versions have changed.
            progress: print how far it is.
        """
        from evidcore.runs.folder import open_run

        return run_to_completion(open_run(self.folder), progress=progress, accept_changes=accept_changes)

    def _table(self, name: str, pattern: str, read: Callable[[Sequence[Path]], pd.DataFrame]) -> pd.DataFrame:
        """Return a table, read anew where its files have changed since."""
        files = sorted(self.folder.glob(pattern))
        state = tuple((item.name, item.stat().st_mtime_ns, item.stat().st_size) for item in files)
        if name not in self._kept or self._kept[name][0] != state:
            self._kept[name] = state, read(files)
        return self._kept[name][1]

    def _repr_html_(self) -> str:
        """Return what a notebook shows: state, main results, verdict, and where the page lies."""
        head = read_head(self.folder)
        status = {key: head.status.get(key) for key in ("state", "stage", "message")}
        told = " ".join(str(value) for value in status.values() if value)
        rows = [
            (result.get("stage"), row["name"], row["metric"], row)
            for result in head.results
            for row in result.get("rows") or ()
            if row.get("headline")
        ]
        header = tag("tr", *(tag("th", name) for name in ("stage", "name", "metric", "value", "low", "high")))
        body = [
            tag("tr", *(tag("td", cell) for cell in (*names, *(number(row.get(key)) for key in _INTERVAL))))
            for *names, row in rows
        ]
        page = self.folder / "page" / "index.html"
        return tag(
            "div",
            tag("p", tag("b", head.name), f" {told or 'not begun'}"),
            tag("table", header, *body) if body else None,
            join([tag("p", f"{task}: {said}") for task, said in self.verdict.items()]),
            tag("p", tag("a", page, href=page.as_uri()) if page.is_file() else self.folder),
        )


def run_to_completion(
    folder: RunFolder, *, progress: bool, accept_changes: bool, assembly: Assembly | None = None
) -> Run:
    """Run a folder to its end and write its page; an error that ends it tells how to go on."""
    from evidcore.cli.run import Progress
    from evidcore.compute.processes import processes
    from evidcore.runs.begin import run as run_folder

    is_first = processes().is_first
    shown = Progress(folder.path) if progress and is_first else None
    try:
        with shown or contextlib.nullcontext():
            run_folder(folder, [shown] if shown else [], accept_changes=accept_changes, assembly=assembly)
    except BaseException as cause:
        cause.add_note(f"Go on with: evidcore.Run({str(folder.path)!r}).resume()")
        raise
    if is_first:
        write_pages(folder.path)
    return Run(folder.path)
