"""Two evaluations of the same questions, compared answer by answer: of one run, or of two."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from evidcore_plugin_pages.record import Line, RunRecord, findings_of, read_head

from evidcore.api import paired_interval
from evidcore.errors import RunError, did_you_mean
from evidcore.evaluate.reference_lines import cluster
from evidcore.runs.read import lines

QUESTION = ["task", "prompt"]  # columns that tell a question from others
_CHANGE = (
    "name", "questions", "patients", "before", "after", "change", "low", "high", "better", "worse", "note",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two evaluations of the same questions."""

    before: str  # RUN:stage
    after: str
    metric: str
    # a row a question, the largest fall first: task, prompt, case, patient, findings, before, after, change
    questions: pd.DataFrame
    notes: tuple[str, ...]

    def by_task(self) -> pd.DataFrame:
        """Return the change of each task: paired by question, its interval over patients."""
        return _changes(self.questions, "task")

    def by_finding(self) -> pd.DataFrame:
        """Return the change of the questions about each finding, the largest fall first."""
        about = self.questions.explode("findings").dropna(subset="findings")
        return _changes(about, "findings").sort_values(["change", "name"], ignore_index=True)

    def about(self, finding: str) -> Comparison:
        """Return the questions about one finding."""
        is_about = self.questions["findings"].map(lambda names: finding in names)
        if not is_about.any():
            known = sorted({name for names in self.questions["findings"] for name in names})
            raise RunError(
                f"no question is about {finding!r}.{did_you_mean(finding, known)} "
                f"There are: {', '.join(known) or 'none'}."
            )
        return dataclasses.replace(self, questions=self.questions[is_about])

    def frame(self) -> pd.DataFrame:
        """Return a row for each task, then one for each finding, the largest fall first."""
        parts = {"task": self.by_task(), "finding": self.by_finding()}
        return pd.concat(parts, names=["of"]).reset_index("of").reset_index(drop=True)


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
    """
    old, new = read_head(first), read_head(second or first)
    after = _stage(new, stage or _evaluations(new)[-1])
    start = before or (after if second is not None else _earlier(old, after))
    sides = (old, _stage(old, start)), (new, after)
    if len({(run.folder.resolve(), name) for run, name in sides}) == 1:
        raise RunError(f"{first}: {start} would be compared with itself. Name another with --before.")
    names = [f"{run.folder.name}:{name}" for run, name in sides]
    answers = [_answers(run.folder, name) for run, name in sides]
    keys = [set(zip(frame["task"], frame["prompt"], strict=True)) for frame in answers]
    if not (shared := keys[0] & keys[1]):
        raise RunError(
            f"{names[0]} and {names[1]} have no question in common: {len(keys[0])} and {len(keys[1])} were "
            "asked. Runs of other seeds have other patients: `evid ablate`."
        )
    was, now = (_worth(frame, shared, metric) for frame in answers)
    questions = now.drop(columns="worth").assign(before=was["worth"], after=now["worth"])
    questions["change"] = questions["after"] - questions["before"]
    notes = [
        f"{len(asked) - len(shared)} questions were asked by {name} alone"
        for name, asked in zip(names, keys, strict=True)
        if len(asked) > len(shared)
    ]
    if worded := int((was["words"] != now["words"]).sum()):
        notes.append(f"{worded} questions are worded otherwise, or have their options in another order")
    if other := int((was["gold"] != now["gold"]).sum()):
        notes.append(f"{other} questions have another right answer")
    return Comparison(
        before=names[0], after=names[1], metric=metric or "value", notes=tuple(notes),
        questions=questions.drop(columns=["words", "gold"]).reset_index().sort_values(["change", *QUESTION]),
    )  # fmt: skip


def _evaluations(head: RunRecord) -> list[str]:
    """Return the stages of a run that measured answers, in their order."""
    kinds = {str(result.get("stage")): result.get("kind") for result in head.results}
    answered = _answered(head)
    found = [name for name in answered if kinds.get(name) == "evaluate"]
    if not found:
        listing = answered or "none"
        raise RunError(f"{head.folder}: has no finished evaluation. Stages with answers: {listing}.")
    return found


def _answered(head: RunRecord) -> list[str]:
    return sorted(path.stem for path in (head.folder / "answers").glob("*.jsonl"))


def _stage(head: RunRecord, name: str) -> str:
    known = _answered(head)
    if name not in known:
        raise RunError(
            f"{head.folder}: stage {name!r} has no answers.{did_you_mean(name, known)} "
            f"Stages with answers: {', '.join(known) or 'none'}."
        )
    return name


def _earlier(head: RunRecord, after: str) -> str:
    """Return the first evaluation before one that shares a question with it."""
    asked = _answers(head.folder, after)[QUESTION]
    earlier = [name for name in _evaluations(head) if name < after]
    for name in earlier:
        if len(asked.merge(_answers(head.folder, name)[QUESTION])):
            return name
    raise RunError(
        f"{head.folder}: no evaluation before {after} asked any of its questions. Evaluations before it: "
        f"{', '.join(earlier) or 'none'}. Give a second run, or --before."
    )


def _answers(folder: Path, stage: str) -> pd.DataFrame:
    """Return a stage's answers over own volumes; a question has several rows where it was asked again."""
    rows = [
        (str(line["task"]), str(line["prompt_id"]), line)
        for line in lines(folder / "answers" / f"{stage}.jsonl")
        if line.get("condition", "own") == "own"
    ]
    return pd.DataFrame(rows, columns=[*QUESTION, "line"])


def _worth(answers: pd.DataFrame, shared: set[tuple[str, str]], metric: str) -> pd.DataFrame:
    """Return what the answers to shared questions are worth, the mean of those to one question."""
    asked = answers.set_index(QUESTION).loc[sorted(shared), "line"]
    rows = [
        {
            "case": str(line["case_id"]), "patient": cluster(line.get("patient"), str(line["case_id"])),
            "findings": findings_of(line), "words": line.get("prompt"), "gold": line.get("answer"),
            "worth": _value(line, metric),
        }
        for line in asked
    ]  # fmt: skip
    by_question = pd.DataFrame(rows, index=asked.index).groupby(level=QUESTION)
    return by_question.first().assign(worth=by_question["worth"].mean())


def _value(line: Line, metric: str) -> float:
    figures: Mapping[str, Any] = line.get("figures") or {}
    value = figures.get(metric) if metric else line.get("value")
    if isinstance(value, bool | int | float) and math.isfinite(value):
        return float(value)
    known = sorted(name for name, figure in figures.items() if isinstance(figure, int | float))
    raise RunError(
        f"the answer to {line['prompt_id']!r} has no number {metric or 'value'!r}."
        f"{did_you_mean(metric, known)} Figures of answers: {', '.join(known) or 'none'}."
    )


def _changes(questions: pd.DataFrame, by: str) -> pd.DataFrame:
    """Return what the questions of each group are worth on either side."""
    rows = []
    for name, asked in questions.groupby(by):
        change = paired_interval(asked["after"], asked["before"], asked["patient"].tolist())
        rows.append((
            name, change.values, change.patients, asked["before"].mean(), asked["after"].mean(),
            change.value, change.low, change.high, (asked["change"] > 0).sum(), (asked["change"] < 0).sum(),
            change.note,
        ))  # fmt: skip
    return pd.DataFrame(rows, columns=_CHANGE)
