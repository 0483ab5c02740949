"""Two evaluations of the same questions, compared answer by answer: of one run, or of two."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evidcore.api import paired_interval
from evidcore.contracts.evaluating import Interval
from evidcore.errors import RunError, did_you_mean
from evidcore.evaluate.reference_lines import cluster
from evidcore.runs.read import Line, RunRecord, findings_of, lines, read_head

if TYPE_CHECKING:
    import pandas as pd

Key = tuple[str, str]  # task, prompt


@dataclasses.dataclass(frozen=True, kw_only=True)
class Question:
    """A question that both sides answered, and what its answer is worth on either."""

    task: str
    prompt: str
    case: str
    patient: str
    findings: tuple[str, ...]
    before: float
    after: float

    @property
    def change(self) -> float:
        """Return how much more it is worth after."""
        return self.after - self.before


@dataclasses.dataclass(frozen=True, kw_only=True)
class Change:
    """What some questions are worth on either side."""

    name: str  # a task, or a finding
    before: float
    after: float
    change: Interval  # paired by question, over patients
    better: int
    worse: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two evaluations of the same questions."""

    before: str  # RUN:stage
    after: str
    metric: str
    questions: tuple[Question, ...]  # the largest fall first
    notes: tuple[str, ...]

    def by_task(self) -> list[Change]:
        """Return the change of each task."""
        tasks = dict.fromkeys(one.task for one in self.questions)
        return [_change(task, [one for one in self.questions if one.task == task]) for task in sorted(tasks)]

    def by_finding(self) -> list[Change]:
        """Return the change of the questions about each finding, the largest fall first."""
        found: dict[str, list[Question]] = {}
        for one in self.questions:
            for name in one.findings:
                found.setdefault(name, []).append(one)
        changes = [_change(name, questions) for name, questions in found.items()]
        return sorted(changes, key=lambda one: (one.change.value, one.name))

    def about(self, finding: str) -> Comparison:
        """Return the questions about one finding.

        Raises:
            RunError: if there is none; names those that there are.
        """
        kept = tuple(one for one in self.questions if finding in one.findings)
        if not kept:
            known = sorted({name for one in self.questions for name in one.findings})
            raise RunError(
                f"no question is about {finding!r}.{did_you_mean(finding, known)} "
                f"There are: {', '.join(known) or 'none'}."
            )
        return dataclasses.replace(self, questions=kept)

    def frame(self) -> pd.DataFrame:
        """Return a row for each task, then one for each finding, the largest fall first."""
        import pandas as pd

        rows = [
            {
                "of": of, "name": one.name, "questions": one.change.values, "patients": one.change.patients,
                "before": one.before, "after": one.after, "change": one.change.value, "low": one.change.low,
                "high": one.change.high, "better": one.better, "worse": one.worse, "note": one.change.note,
            }
            for of, changes in (("task", self.by_task()), ("finding", self.by_finding()))
            for one in changes
        ]  # fmt: skip
        return pd.DataFrame(rows)


def compared(
    first: Path, second: Path | None, *, stage: str = "", before: str = "", metric: str = ""
) -> Comparison:
    """Compare the answers of two runs, or of two evaluations of one.

    Args:
        first: a run.
        second: another; None: the first one's own earlier evaluation is what is compared with.
        stage: which evaluation; empty: the last.
        before: which one it is compared with: of `first`. Empty: `stage` where there are two runs, else the
            first before it that asked the same.
        metric: a figure of each answer; empty: what the task's headline is the mean of.

    Raises:
        RunError: if a run, a stage or a figure is missing, or no question was answered by both.
    """
    old, new = read_head(first), read_head(second or first)
    after = _stage(new, stage or _evaluations(new)[-1])
    if second is not None:
        start = _stage(old, before or after)
    else:
        start = _stage(old, before) if before else _before(old, after)
    if (old.folder.resolve(), start) == (new.folder.resolve(), after):
        raise RunError(f"{first}: {start} would be compared with itself. Name another with --before.")
    before_name, after_name = f"{old.folder.name}:{start}", f"{new.folder.name}:{after}"
    before_lines, after_lines = _answers(old.folder, start), _answers(new.folder, after)
    shared = [key for key in after_lines if key in before_lines]
    if not shared:
        raise RunError(
            f"{before_name} and {after_name} have no question in common: {len(before_lines)} and "
            f"{len(after_lines)} were asked. Runs of other seeds have other patients: `evid ablate`."
        )
    questions = [_question(before_lines[key], after_lines[key], metric) for key in shared]
    notes = [
        f"{len(asked) - len(shared)} questions were asked by {name} alone"
        for name, asked in ((before_name, before_lines), (after_name, after_lines))
        if len(asked) > len(shared)
    ]
    worded = sum(before_lines[key][0].get("prompt") != after_lines[key][0].get("prompt") for key in shared)
    if worded:
        notes.append(f"{worded} questions are worded otherwise, or have their options in another order")
    return Comparison(
        before=before_name, after=after_name, metric=metric or "value", notes=tuple(notes),
        questions=tuple(sorted(questions, key=lambda one: (one.change, one.task, one.prompt))),
    )  # fmt: skip


def _evaluations(head: RunRecord) -> list[str]:
    """Return the stages of a run that measured answers, in their order."""
    kinds = {str(result.get("stage")): result.get("kind") for result in head.results}
    there = sorted(path.stem for path in (head.folder / "answers").glob("*.jsonl"))
    found = [name for name in there if kinds.get(name) == "evaluate"]
    if not found:
        raise RunError(f"{head.folder}: has no finished evaluation. Stages with answers: {there or 'none'}.")
    return found


def _stage(head: RunRecord, name: str) -> str:
    known = sorted(path.stem for path in (head.folder / "answers").glob("*.jsonl"))
    if name not in known:
        raise RunError(
            f"{head.folder}: stage {name!r} has no answers.{did_you_mean(name, known)} "
            f"Stages with answers: {', '.join(known) or 'none'}."
        )
    return name


def _before(head: RunRecord, after: str) -> str:
    """Return the first evaluation before one that shares a question with it."""
    asked = _answers(head.folder, after).keys()
    earlier = [name for name in _evaluations(head) if name < after]
    for name in earlier:
        if not asked.isdisjoint(_answers(head.folder, name)):
            return name
    raise RunError(
        f"{head.folder}: no evaluation before {after} asked any of its questions. Evaluations before it: "
        f"{', '.join(earlier) or 'none'}. Give a second run, or --before."
    )


def _answers(folder: Path, stage: str) -> dict[Key, list[Line]]:
    """Return a stage's answers over own volumes, by question; several where it was asked several times."""
    found: dict[Key, list[Line]] = {}
    for line in lines(folder / "answers" / f"{stage}.jsonl"):
        if line.get("condition", "own") == "own":
            found.setdefault((str(line["task"]), str(line["prompt_id"])), []).append(line)
    return found


def _question(before: Sequence[Line], after: Sequence[Line], metric: str) -> Question:
    line = after[0]
    return Question(
        task=str(line["task"]),
        prompt=str(line["prompt_id"]),
        case=str(line["case_id"]),
        patient=cluster(line.get("patient"), str(line["case_id"])),
        findings=tuple(findings_of(line)),
        before=statistics.fmean(_worth(one, metric) for one in before),
        after=statistics.fmean(_worth(one, metric) for one in after),
    )


def _worth(line: Line, metric: str) -> float:
    figures: Mapping[str, Any] = line.get("figures") or {}
    value = figures.get(metric) if metric else line.get("value")
    if isinstance(value, bool | int | float) and math.isfinite(value):
        return float(value)
    known = sorted(name for name, one in figures.items() if isinstance(one, int | float))
    raise RunError(
        f"the answer to {line['prompt_id']!r} has no number {metric or 'value'!r}."
        f"{did_you_mean(metric, known)} Figures of answers: {', '.join(known) or 'none'}."
    )


def _change(name: str, questions: Iterable[Question]) -> Change:
    asked = list(questions)
    before, after = [one.before for one in asked], [one.after for one in asked]
    return Change(
        name=name,
        before=statistics.fmean(before),
        after=statistics.fmean(after),
        change=paired_interval(after, before, [one.patient for one in asked]),
        better=sum(one.change > 0 for one in asked),
        worse=sum(one.change < 0 for one in asked),
    )
