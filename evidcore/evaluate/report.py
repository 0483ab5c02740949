"""Evaluate reports: which findings they affirm, against what is known of the case."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from evidcore.builtin.labelers import NegationRules
from evidcore.builtin.scorers import states
from evidcore.case import Prompt, State
from evidcore.contracts import Labeler, Policy, Task
from evidcore.evaluate.choice import Condition, batches, unknown_patients
from evidcore.evaluate.reference_lines import cluster, row
from evidcore.evaluate.statistics import Interval, mean_interval, ratio_interval


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportAnswer:
    """One report written: a line of `answers/<stage>.jsonl`."""

    prompt_id: str
    case_id: str
    patient: str | None
    task: str
    condition: Condition
    prompt: str  # what was asked, as text
    text: str  # what was answered
    malformed: str | None
    affirmed: tuple[str, ...]  # findings that the report says are present
    present: tuple[str, ...]  # findings that are
    absent: tuple[str, ...]  # findings that are known not to be
    images: tuple[str, ...]

    @property
    def cluster(self) -> str:
        """Return the patient, or the case where no patient is known."""
        return cluster(self.patient, self.case_id)

    def counts(self, finding: str | None = None) -> tuple[int, int, int]:
        """Return true positives, false positives and false negatives, of one finding or of all."""
        said, true, false = (
            {name for name in names if finding in (None, name)}
            for names in (self.affirmed, self.present, self.absent)
        )
        return len(said & true), len(said & false), len(true - said)

    def line(self) -> dict[str, Any]:
        """Return the JSON form."""
        lists = ("affirmed", "present", "absent", "images")
        return {**dataclasses.asdict(self), **{name: list(getattr(self, name)) for name in lists}}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportResult:
    """All reports of one policy."""

    name: str
    answers: tuple[ReportAnswer, ...]

    def f1(self, finding: str | None = None) -> Interval | None:
        """Return F1 over all findings (micro) or of one, None where it is neither present nor affirmed."""
        counts = np.array([answer.counts(finding) for answer in self.answers], dtype=np.float64)
        below = 2 * counts[:, 0] + counts[:, 1] + counts[:, 2]
        if not below.any():
            return None
        return ratio_interval(2 * counts[:, 0], below, [answer.cluster for answer in self.answers])

    def rows(self) -> list[dict[str, Any]]:
        """Return the results rows: micro and macro F1, well-formed reports, then F1 by finding.

        Macro is the mean over the findings that at least one case has.
        """
        patients = [answer.cluster for answer in self.answers]
        note = unknown_patients(answer.patient for answer in self.answers)
        formed = mean_interval([float(answer.malformed is None) for answer in self.answers], patients)
        found = [row(self.name, "format_rate", formed)]
        if micro := self.f1():
            found.append(row(self.name, "findings_f1_micro", micro, note=note))
        names = sorted({name for answer in self.answers for name in answer.present})
        by_finding = {name: interval for name in names if (interval := self.f1(name)) is not None}
        if by_finding:
            macro = sum(interval.value for interval in by_finding.values()) / len(by_finding)
            average = Interval(
                value=macro, low=None, high=None, values=len(self.answers), patients=len(set(patients)),
                note=f"mean over {len(by_finding)} findings",
            )  # fmt: skip
            found.append(row(self.name, "findings_f1_macro", average))
        found += [row(self.name, f"findings_f1/{name}", interval) for name, interval in by_finding.items()]
        return found


def evaluate_report(
    policy: Policy,
    prompts: Sequence[Prompt],
    task: Task,
    *,
    max_new_tokens: int,
    labeler: Labeler | None = None,
    name: str | None = None,
    condition: Condition = "own",
    batch_size: int = 64,
) -> ReportResult:
    """Write reports greedily and find what they affirm.

    Findings that a case calls uncertain, or knows nothing of, are left out.

    Args:
        policy: the model.
        prompts: prompts of `task` on cases whose findings are known.
        task: reads the completions.
        max_new_tokens: most tokens of a report.
        labeler: reads the reports; `negation-rules` if left out.
        name: what results call it; the prompts' task if left out.
        condition: which volumes the prompts show.
        batch_size: prompts shown at once.

    Raises:
        ValueError: if there are no prompts, or nothing is known of a case's findings; names it.
    """
    if not prompts:
        raise ValueError("there is no report to evaluate")
    reader = labeler or NegationRules()
    answers = []
    for batch in batches(prompts, batch_size):
        for prompt, text in zip(batch, policy.generate(batch, max_new_tokens=max_new_tokens), strict=True):
            if not prompt.case.findings:
                raise ValueError(f"no findings are known of case {prompt.case.id!r}, so no F1 can be given")
            read = task.parse(prompt, text)
            known = states(prompt.case.findings)
            answers.append(
                ReportAnswer(
                    prompt_id=prompt.id,
                    case_id=prompt.case.id,
                    patient=prompt.case.patient,
                    task=prompt.task,
                    condition=condition,
                    prompt=prompt.written(),
                    text=text,
                    malformed=read.malformed,
                    affirmed=_with(states(reader(read.report or "")), "present"),
                    present=_with(known, "present"),
                    absent=_with(known, "absent"),
                    images=tuple(crop.uri() for crop in prompt.crops()),
                )
            )
    return ReportResult(name=name or prompts[0].task, answers=tuple(answers))


def _with(known: dict[str, State], state: State) -> tuple[str, ...]:
    return tuple(name for name, here in known.items() if here == state)
