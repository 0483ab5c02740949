"""Evaluate reports with evidence: what they assert and omit, and whether the slice they cite shows it.

Masks decide whether a slice shows a finding. No reader is asked, so none that paid can judge. How each figure
is counted stands in the README of the package. What an answer says of findings that the case doubts, or knows
nothing of, counts nowhere. A report that the labeler cannot read is not measured, and has 0 of the headline
where an audit compares. One slice seldom shows all lesions of a scan: `gold_grounded_accuracy`, the right
report with the gold slice, is the ceiling.
"""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from evidcore_plugin_reports.agreement import affirmed, compare_details
from evidcore_plugin_reports.evaluation import report_refusal

from evidcore.api import Answer, Answers, EvalResult, Evaluation, Finding, Labeler, Prompt, Row, Task
from evidcore.contracts import LabelError, Totals
from evidcore.evaluate.answer_record import AnswerRecord, question_of
from evidcore.evaluate.measuring import Measurement, TextFigures
from evidcore.evaluate.numeric_result import NumericResult
from evidcore_plugin_emrl.blind_reports import best_answers, usual_slices
from evidcore_plugin_emrl.evidence_figures import BY_FINDING, CEILING, HEADLINE, UNITS, figures, seen
from evidcore_plugin_emrl.matched_slices import lacks_mask

USUAL_HITS = "usual_slice_evidence_hit_rate"  # what a right report earns that did not look where
SHOWN = (HEADLINE, "hallucination_rate", "omission_rate", "evidence_hit_rate", CEILING)  # at a glance
Read = tuple[Finding, ...] | LabelError


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvidenceAnswer(AnswerRecord):
    """One report with its evidence."""

    affirmed: tuple[str, ...]
    present: tuple[str, ...]
    slices: dict[str, int]  # cited, by finding, or under "" for the report
    gold_slices: dict[str, int]
    unread: str | None  # why the labeler could not read the report


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvidenceResult(NumericResult):
    """All reports of one policy, or of a rule in its place."""

    def rows(self) -> list[Row]:
        """Return the results rows: well-formed answers, the figures, then those by finding."""
        figures = self.measured.rows(self.name, self.clusters)
        rows = (dataclasses.replace(item, is_headline=item.metric in SHOWN) for item in figures)
        return [self.mean_row("format_rate"), *rows]


class EvidenceEvaluation(Evaluation[Answer]):
    """What reports assert and omit, and whether the slices that they cite show it, by the masks.

    Args:
        cache_folder: keeps what was measured of masks.
        labeler: reads the findings of the reports.
    """

    headline = HEADLINE
    beside = ("evidence_hit_rate", "hallucination_rate", "omission_rate", "format_rate")

    def __init__(
        self,
        cache_folder: Path,
        *,
        labeler: Labeler = {"use": "negation-rules"},  # type: ignore[assignment]  # noqa: B006  # a recipe's table
    ) -> None:
        self.cache_folder = cache_folder
        self.labeler = labeler

    def refusal(self, task: Task, prompts: Sequence[Prompt]) -> str:
        """Return why the first prompt cannot be measured: no targets, no mask, or unknown findings."""
        prompt = prompts[0]
        if not {"shown", "target", "targets"} <= prompt.reference.keys():
            return f"prompt {prompt.id!r} names no slices that show its findings"
        without = lacks_mask(prompt.case)
        if without is not None:
            return f"finding {without!r} of prompt {prompt.id!r} has no mask"
        return report_refusal(self.labeler, task, prompts)

    def score(self, answers: Sequence[Answers[Answer]], task: Task, name: str) -> list[EvalResult]:
        """Read the reports, equal ones once, and measure them."""
        read = self.labeler.read_once(item.report or "" for given in answers for item in given.said)
        findings = ([read[item.report or ""] for item in given.said] for given in answers)
        return [self._score(given, some, task, name) for given, some in zip(answers, findings, strict=True)]

    def references(
        self, prompts: Sequence[Prompt], training: Callable[[], Sequence[Prompt]], task: Task, name: str
    ) -> Evaluation.BlindRule:
        """Return what the best rule scores that reads words alone, chosen on training patients.

        Beside it stands what right reports would hit with the usual slice of their findings.
        """
        learnt = training()
        rule, said = best_answers(prompts, learnt, self.cache_folder)
        usual = [Answer(text="", evidence=item) for item in usual_slices(prompts, learnt, self.cache_folder)]
        right = [prompt.case.findings for prompt in prompts]
        told = self._score(Answers(prompts, usual), right, task, name)
        given = Answers(prompts, [Answer(text="", evidence=evidence) for _, evidence in said])
        findings = [tuple(Finding(name=item) for item in sorted(affirms)) for affirms, _ in said]
        scored = self._score(given, findings, task, name)
        rows = tuple(
            dataclasses.replace(item, metric=f"blind_{item.metric}", note=rule, is_headline=False)
            for item in scored.rows()
            if item.metric in SHOWN and item.metric != CEILING
        )
        hits = next(item for item in told.rows() if item.metric == "evidence_hit_rate")
        note = "the right report with the usual slice of its findings"
        hits = dataclasses.replace(hits, metric=USUAL_HITS, note=note, is_headline=False)
        return Evaluation.BlindRule(
            values=scored.values(HEADLINE), rule=rule, label="blind_rule", rows=(*rows, hits),
            figures={"blind_grounded_accuracy": rows[0].value, USUAL_HITS: hits.value},
        )  # fmt: skip

    def _score(self, given: Answers[Answer], read: Sequence[Read], task: Task, name: str) -> EvidenceResult:
        """Measure answers of which the findings are known."""
        names = sorted({item.name for prompt in given.prompts for item in prompt.case.findings})
        answers, texts = [], []
        told = self._told(given.prompts, task)
        for prompt, answer, findings in zip(given.prompts, given.said, read, strict=True):
            known, evidence = seen(prompt, self.cache_folder), answer.evidence
            measured, missing = figures(
                prompt, known, findings, evidence, answer.malformed, names, told[prompt.id]
            )
            texts.append(TextFigures(figures=measured, unscored=missing))
            slices = dict(evidence.slices) if evidence is not None else {}
            if evidence is not None and evidence.slice is not None:
                slices[""] = evidence.slice
            answers.append(
                EvidenceAnswer(
                    **question_of(prompt, given.condition),
                    text=answer.text,
                    malformed=answer.malformed,
                    affirmed=() if isinstance(findings, LabelError) else affirmed(findings),
                    present=known.present,
                    slices=slices,
                    gold_slices=dict(known.gold),
                    unread=str(findings) if isinstance(findings, LabelError) else None,
                )
            )
        return EvidenceResult(name=name, answers=answers, measured=_measurement(texts, names))

    def _told(self, prompts: Sequence[Prompt], task: Task) -> dict[str, dict[str, set[str]]]:
        """Return the details that the gold report tells as the case does, by prompt and finding."""
        reports = [task.parse(prompt, task.gold(prompt)[0]).report or "" for prompt in prompts]
        read = self.labeler.read_once(reports)
        told: dict[str, dict[str, set[str]]] = {}
        for prompt, report in zip(prompts, reports, strict=True):
            gold = read[report]
            agreed = {} if isinstance(gold, LabelError) else compare_details(gold, prompt.case.findings)
            told[prompt.id] = {name: {key for key in item if item[key]} for name, item in agreed.items()}
        return told


def _measurement(texts: Sequence[TextFigures], names: Sequence[str]) -> Measurement:
    """Return the figures, and what tables say beside them."""
    bare = {name: name for name in UNITS} | {f"{name}/{item}": name for name in BY_FINDING for item in names}
    known = {name: source for name, source in bare.items() if any(name in text.figures for text in texts)}
    silent = sum(text.figures.get("hallucination_rate") == Totals("ratio", (0.0, 0.0)) for text in texts)
    notes = {CEILING: "the right report with the gold slice"}
    if silent:
        notes["hallucination_rate"] = f"{silent} of {len(texts)} reports affirm nothing and add nothing"
    return Measurement(
        texts=tuple(texts),
        units={name: UNITS[source] for name, source in bare.items()},
        notes=notes,
        sources=known,
    )
