"""Evaluate reports: which findings they affirm, and what metrics say of their words."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from evidcore.api import (
    Answer,
    Answers,
    EvalResult,
    Evaluation,
    Finding,
    Labeler,
    Metric,
    Prompt,
    Report,
    Row,
    Task,
)
from evidcore.case import State
from evidcore.contracts import LabelError, TextSample, Totals
from evidcore.evaluate.answer_record import AnswerRecord, gold_answer, question_of
from evidcore.evaluate.measuring import Measurement, TextFigures, measure, named_metrics
from evidcore.evaluate.numeric_result import NumericResult
from evidcore.registry import blame
from evidcore.registry.factory import offer_of
from evidcore_plugin_reports.agreement import states
from evidcore_plugin_reports.claims import claims

F1_MICRO, F1_MACRO = "findings_f1_micro", "findings_f1_macro"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportAnswer(AnswerRecord):
    """One report written: a line of `answers/<stage>.jsonl`."""

    affirmed: tuple[str, ...]  # findings that the report says are present
    present: tuple[str, ...]  # findings that are
    absent: tuple[str, ...]  # findings that are known not to be
    unread: str | None  # why the labeler could not read the report
    removed: str | None = None  # finding that the showing lacks

    @property
    def is_known(self) -> bool:
        """Tell whether an F1 can be given: findings of the case are known, and the report was read."""
        return bool(self.present or self.absent) and self.unread is None

    def counts(self, finding: str | None = None) -> tuple[int, int, int]:
        """Return true positives, false positives and false negatives, of one finding or of all."""
        said, true, false = (
            {name for name in names if finding in (None, name)}
            for names in (self.affirmed, self.present, self.absent)
        )
        return len(said & true), len(said & false), len(true - said)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportResult(NumericResult):
    """All reports of one policy, and what the metrics measured of them."""

    answers: tuple[ReportAnswer, ...]
    findings: Measurement  # F1 over all findings and of each

    def values(self, metric: str) -> tuple[float, ...]:
        """Return F1 over the findings of each report, 0 where none is known or read, or its format."""
        return super().values(metric) if metric == "format_rate" else tuple(map(_f1_of, self.answers))

    def unit(self, metric: str) -> str:
        """Return "score" for F1."""
        return "" if metric == "format_rate" else "score"

    def claims(
        self, showings: Mapping[str, Mapping[str, Sequence[EvalResult]]], blind: Evaluation.BlindRule | None
    ) -> EvalResult.Claims | None:
        """Return which findings are seen, of those that some cases have and some have not."""
        dark = {name: _reports(some) for name, some in showings.get("blind", {}).items()}
        if isinstance(blind, ReportRule):
            dark = {blind.name: [blind.reports], **dark}
        removed = {name: _reports(some) for name, some in showings.get("removed", {}).items()}
        return claims(self, dark, removed)

    def lines(self) -> list[dict[str, Any]]:
        """Return what `answers/<stage>.jsonl` holds of each report, its figures with it."""
        rows = zip(self.answers, self.findings.texts, self.measured.texts, strict=True)
        return [answer.line() | (first | second).line() for answer, first, second in rows]

    def rows(self) -> list[Row]:
        """Return the results rows: well-formed reports, F1 micro and macro, the metrics, F1 by finding.

        Macro is the mean over the findings that at least one case has.
        """
        by_finding = self.findings.rows(self.name, self.clusters)
        metrics = self.measured.rows(self.name, self.clusters)
        main = [item for item in by_finding if "/" not in item.metric]
        return [
            self.mean_row("format_rate"),
            *main,
            *(dataclasses.replace(m, is_headline=m.unit == "rate") for m in metrics if "/" not in m.metric),
            *(item for item in by_finding if item not in main),
            *(item for item in metrics if "/" in item.metric),
        ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportRule(Evaluation.BlindRule):
    """The best rule that writes reports without a look, and what it writes."""

    reports: ReportResult


def _reports(results: Sequence[EvalResult]) -> list[ReportResult]:
    return [result for result in results if isinstance(result, ReportResult)]


class ReportEvaluation(Evaluation[Answer]):
    """Which findings written reports affirm, and what metrics say of their words.

    Findings that a case calls uncertain, or knows nothing of, are left out of F1; so are cases of which no
    finding is known, and reports that the labeler cannot read.

    Args:
        labeler: reads the findings of the reports.
        metric: what else the reports are measured by; the task's gold answers are the references.
    """

    headline = F1_MICRO
    beside = ("format_rate",)
    points = "points of F1"

    def __init__(
        self,
        *,
        labeler: Labeler = {"use": "negation-rules"},  # type: ignore[assignment]  # noqa: B006  # a recipe's table
        metric: tuple[Metric, ...] = (),
    ) -> None:
        self.labeler = labeler
        self.metrics = named_metrics(metric)

    def refusal(self, task: Task, prompts: Sequence[Prompt]) -> str:
        """Return why the first prompt's gold answer is no report, if it is none."""
        return report_refusal(self.labeler, task, prompts)

    def ready(self) -> None:
        for named in self.metrics:
            with blame(offer_of(named.metric), "looking for what it needs"):
                named.metric.ready()

    def score(self, answers: Sequence[Answers[Answer]], task: Task, name: str) -> list[EvalResult]:
        read = (self.labeler.read([answer.report or "" for answer in given.said]) for given in answers)
        return [self._score(given, some, task, name) for given, some in zip(answers, read, strict=True)]

    def references(
        self, prompts: Sequence[Prompt], training: Callable[[], Sequence[Prompt]], task: Task, name: str
    ) -> Evaluation.BlindRule | None:
        """Return what the best rule scores that does not look; None where training knows of no findings.

        Metrics measure the training report that fits best what the rule affirms.
        """
        from evidcore_plugin_reports.blind import best_findings  # scikit-learn, 1 s

        learnt = training()
        if (best := best_findings(prompts, learnt)) is None:
            return None
        rule, sets = best
        reports = {prompt.case.id: (reference_of(prompt, task), prompt.case.present()) for prompt in learnt}
        texts: dict[frozenset[str], str] = {}
        for item in dict.fromkeys(sets):  # the report that affirms most of these and least else
            apart = [(len(item ^ {*present}), report.text) for report, present in reports.values() if report]
            texts[item] = min(apart, key=lambda pair: pair[0], default=(0, ""))[1]
        said = [Answer(text=texts[item], report=texts[item]) for item in sets]
        given = Answers(prompts, said, "blind-rule")
        findings = [[Finding(name=name) for name in sorted(item)] for item in sets]
        scored = self._score(given, findings, task, name)
        rows = tuple(
            dataclasses.replace(
                row, metric=f"blind_{row.metric}", note=f"best blind rule: {rule}", is_headline=False
            )
            for row in scored.rows()
            if "/" not in row.metric and row.metric != "format_rate"
        )
        return ReportRule(
            values=scored.values(F1_MICRO), rule=rule, label="blind_rule", rows=rows, reports=scored,
            figures={row.metric: row.value for row in rows},
        )  # fmt: skip

    def _score(
        self, given: Answers[Answer], read: Sequence[Sequence[Finding] | LabelError], task: Task, name: str
    ) -> ReportResult:
        """Measure reports of which the findings are known."""
        answers, texts = [], []
        for prompt, answer, result in zip(given.prompts, given.said, read, strict=True):
            gold, report = reference_of(prompt, task), answer.report or ""
            texts.append(TextSample(case=prompt.case, asked=prompt.written(), text=report, reference=gold))
            known = states(prompt.case.findings)
            answers.append(
                ReportAnswer(
                    **question_of(prompt, given.condition),
                    text=answer.text,
                    malformed=answer.malformed,
                    affirmed=() if isinstance(result, LabelError) else _with(states(result), "present"),
                    present=_with(known, "present"),
                    absent=_with(known, "absent"),
                    unread=str(result) if isinstance(result, LabelError) else None,
                    removed=prompt.reference.get("removed"),
                )
            )
        return ReportResult(
            name=name,
            answers=tuple(answers),
            findings=_findings(answers),
            measured=measure(self.metrics, texts, "report"),
        )


def report_refusal(labeler: Labeler, task: Task, prompts: Sequence[Prompt]) -> str:
    """Return why reports cannot be measured: gold that is none, or findings that are never looked for."""
    if gold_answer(prompts[0], task).report is None:
        return f"the gold answer of prompt {prompts[0].id!r} is read as no report"
    known = dict.fromkeys(item.name for prompt in prompts for item in prompt.case.findings)
    label_names = labeler.label_names()
    unknown = [name for name in known if name not in label_names] if label_names else []
    if not unknown:
        return ""
    listed = ", ".join(map(repr, unknown[:3])) + (", …" if len(unknown) > 3 else "")
    return (
        f"labeler {offer_of(labeler).name!r} does not look for {listed} ({len(unknown)} of the {len(known)} "
        f"findings of case {prompts[0].case.id!r}). Leave its findings out, to take those of the data sets, "
        "or name all of them"
    )


def reference_of(prompt: Prompt, task: Task) -> Report | None:
    """Return the report within a task's gold answer, with its labelled sentences; None if it holds none."""
    gold, spans = task.gold(prompt)
    text = task.parse(prompt, gold).report
    if text is None:
        return None
    start = gold.find(text)
    end = start + len(text) if start >= 0 else start  # no span lies in a text that is not there
    inside = (span for span in spans if start <= span.start and span.end <= end)
    moved = (dataclasses.replace(span, start=span.start - start, end=span.end - start) for span in inside)
    return Report(text=text, spans=tuple(moved))


def _findings(answers: Sequence[ReportAnswer]) -> Measurement:
    """Return F1 as figures: 2 TP over 2 TP + FP + FN."""
    # of all cases, whether their reports could be read or not: two runs over them have the same list
    names = sorted({name for answer in answers for name in answer.present})
    texts = []
    for answer in answers:
        if not answer.is_known:
            reason = answer.unread or "no finding of the case is known"
            texts.append(TextFigures(unscored={F1_MICRO: reason}))
            continue
        each = {name: _f1(answer.counts(name)) for name in names}
        macro = Totals("mean_ratio", tuple(number for pair in each.values() for number in pair.numbers))
        figures = {F1_MICRO: _f1(answer.counts())} | ({F1_MACRO: macro} if names else {})
        by_finding = {f"findings_f1/{name}": pair for name, pair in each.items()}
        texts.append(TextFigures(figures=figures | by_finding))
    figures_ = dict.fromkeys(name for text in texts for name in text.figures)
    return Measurement(
        texts=tuple(texts),
        units=dict.fromkeys(figures_, "score"),
        notes={F1_MACRO: f"mean over {len(names)} findings"},
        sources=dict.fromkeys(figures_, F1_MICRO),
    )


def _f1_of(answer: ReportAnswer) -> float:
    right, of = _f1(answer.counts()).numbers if answer.is_known else (0.0, 0.0)
    return right / of if of else 0.0


def _f1(counts: tuple[int, int, int]) -> Totals:
    true, extra, missed = counts
    return Totals("ratio", (2.0 * true, 2.0 * true + extra + missed))


def _with(known: dict[str, State], state: State) -> tuple[str, ...]:
    return tuple(name for name, here in known.items() if here == state)
