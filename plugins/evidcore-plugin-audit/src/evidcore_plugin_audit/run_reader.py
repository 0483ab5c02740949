"""`evidcore.Run`: what a run wrote, finished or not, as tables of pandas; no model and no torch is loaded.

Columns have the names that the files have.
"""

from __future__ import annotations

import contextlib
import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from evidcore_plugin_pages.document import write_page
from evidcore_plugin_pages.markup import DASH, Html, join, tag
from evidcore_plugin_pages.record import read_head

from evidcore.hooks import write_pages
from evidcore.runs.read import lines, read_object, read_status

if TYPE_CHECKING:
    from evidcore.runs.assembly import Assembly
    from evidcore.runs.folder import RunFolder
    from evidcore_plugin_audit.comparison import Comparison

State = tuple[tuple[str, int, int], ...]  # of files: name, time in ns, size in bytes
COLUMNS = tomllib.loads(Path(__file__).with_name("run_columns.toml").read_text(encoding="utf-8"))
_DTYPES = {"empty": "float64", "boolean": "boolean"}  # of columns in which some or all values are missing


class Run:
    """A run, finished or not. What it wrote is read when it is asked for, and again after it has changed."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder).resolve()
        read_head(self.folder)
        self._cache: dict[str, tuple[State, pd.DataFrame]] = {}

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
        return self._table("results", "results/*.json")

    @property
    def answers(self) -> pd.DataFrame:
        """Each answer of each evaluation and audit: condition, case, question, text, its value and more."""
        return self._table("answers", "answers/*.jsonl")

    @property
    def rollouts(self) -> pd.DataFrame:
        """Each rollout: step, group, text, total, advantage, and `reward/<name>` for each reward.

        A reward that gave no verdict is missing, not 0.
        """
        return self._table("rollouts", "rollouts/*.jsonl")

    @property
    def metrics(self) -> pd.DataFrame:
        """The figures of training, by stage and step."""
        return self._table("metrics", "metrics.jsonl")

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

    def _table(self, name: str, pattern: str) -> pd.DataFrame:
        """Return a table, read anew where its files have changed since."""
        files = sorted(self.folder.glob(pattern))
        state = tuple((item.name, item.stat().st_mtime_ns, item.stat().st_size) for item in files)
        if name not in self._cache or self._cache[name][0] != state:
            rows = pd.DataFrame([row for path in files for row in _rows(name, path)])
            rows = rows.reindex(columns=list(dict.fromkeys([*COLUMNS[name], *rows.columns])))
            kinds = {column: pd.api.types.infer_dtype(rows[column]) for column in rows.columns}
            dtypes = {column: _DTYPES[kind] for column, kind in kinds.items() if kind in _DTYPES}
            self._cache[name] = state, rows.astype(dtypes)
        return self._cache[name][1]

    def _repr_html_(self) -> str:
        """Return what a notebook shows: state, main results, verdict, and where the page lies."""
        head, results = read_head(self.folder), self.results
        texts = [head.status.get(key) for key in ("state", "stage", "message")]
        status = " ".join(str(text) for text in texts if text)
        main = results[results["headline"].astype(bool)]
        main = main[["stage", "name", "metric", "value", "low", "high"]]
        page = self.folder / "page" / "index.html"
        return tag(
            "div",
            tag("p", tag("b", head.name), f" {status or 'not begun'}"),
            Html(main.to_html(index=False, border=0, na_rep=DASH)) if len(main) else None,
            join([tag("p", f"{task}: {text}") for task, text in self.verdict.items()]),
            tag("p", tag("a", page, href=page.as_uri()) if page.is_file() else self.folder),
        )


def _rows(table: str, path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield what a file adds to a table: a figure, an answer, a step of training or a rollout."""
    if table == "results":
        result = read_object(path)
        of_stage = {"stage": result.get("stage"), "kind": result.get("kind")}
        for row in result.get("rows") or ():
            yield {**of_stage, "task": row["name"], **row, "headline": bool(row.get("headline"))}
    elif table != "rollouts":
        yield from ({"stage": path.stem, **line} for line in lines(path))
    else:
        yield from _rollouts(path)


def _rollouts(path: Path) -> Iterator[dict[str, Any]]:
    step, group = None, 0
    for line in lines(path):
        group = group + 1 if line["step"] == step else 0
        step = line["step"]
        of_group = {"stage": path.stem, "step": step, "group": group}
        of_group |= {key: line.get(key) for key in ("task", "prompt_id", "case_id", "prompt")}
        for item in line["rollouts"]:
            rewards: Mapping[str, Any] = item["rewards"]
            values = {f"reward/{name}": verdict["value"] for name, verdict in rewards.items()}
            reasons = {f"reason/{name}": verdict["reason"] for name, verdict in rewards.items()}
            yield {
                **of_group, **{key: value for key, value in item.items() if key != "rewards"},
                **values, **reasons,
            }  # fmt: skip


def run_to_completion(
    folder: RunFolder, *, progress: bool, accept_changes: bool, assembly: Assembly | None = None
) -> Run:
    """Run a folder to its end and write its page; an error that ends it tells how to go on."""
    from evidcore.cli.run import Progress
    from evidcore.compute.processes import processes
    from evidcore.runs.begin import run as run_folder

    is_first = processes().is_first
    shown = Progress() if progress and is_first else None
    try:
        with shown or contextlib.nullcontext():
            run_folder(folder, [shown] if shown else [], accept_changes=accept_changes, assembly=assembly)
    except BaseException as cause:
        cause.add_note(f"Go on with: evidcore.Run({str(folder.path)!r}).resume()")
        raise
    if is_first:
        write_pages(folder.path)
    return Run(folder.path)
