"""Metric `abnormal-recall`: of what the reference calls abnormal, how much a report says, by place."""

import collections
from collections.abc import Mapping, Sequence

from evidcore_plugin_reports.agreement import affirmed
from evidcore_plugin_reports.labelers import NegationRules, Vocabulary
from evidcore_plugin_reports.sentences import NO_REFERENCE, labelled, reference_of

from evidcore.api import Finding, Labeler, Metric, Report, Unscored
from evidcore.contracts import LabelError, Measured, TextSample, Totals

DECILES = 10
_LATE_MINUS_EARLY = "abnormal_recall_late_minus_early"


class AbnormalRecall(Metric):
    """Share of the reference's abnormal sentences whose findings the report affirms.

    Reports tell the normal first, and a model can lower its loss by that alone; weighing abnormal sentences
    more (ARW) is to bring back what stands late. Each abnormal sentence counts once: the share of the
    findings it affirms that the report affirms too. A sentence stands where its middle is, in characters of
    its report. `abnormal_recall_late_minus_early` is the recall in the second half of reports minus that
    in the first.

    Sentences are those labelled abnormal in the data; where a report came without labels, those in which
    the evaluation's labeler finds anything present or uncertain; where it names none, `negation-rules` for
    the data sets' findings. The same labeler reads the findings of both texts. An abnormal sentence in which
    it affirms none cannot be looked for and is left out.

    Source:
        Lai et al. 2026, Med3D-R1, arXiv:2602.01200, section on abnormality re-weighting and figure 3.
    """

    unit = "rate"

    def __init__(self, labeler: Labeler | None = None, vocabulary: Vocabulary = tuple) -> None:
        self.labeler = labeler or NegationRules(vocabulary)
        self._counts: collections.Counter[int | None] = collections.Counter()  # by decile; None: left out

    def __call__(self, texts: Sequence[TextSample]) -> Sequence[Measured | Unscored]:
        """Return for each report the sentences found and looked for, over all places and by decile."""
        references = [text.reference if reference_of(text) is not None else None for text in texts]
        read = self.labeler.read_once([
            *(text.text for text in texts),
            *(report.text for report in references if report is not None),
        ])
        self._counts.clear()
        result: list[Measured | Unscored] = []
        for text, reference in zip(texts, references, strict=True):
            if reference is None:
                result.append(NO_REFERENCE)
                continue
            ours, theirs = read[text.text], read[reference.text]
            if isinstance(ours, LabelError) or isinstance(theirs, LabelError):
                which = "the report" if isinstance(ours, LabelError) else "its reference"
                result.append(Unscored(kind="failed", reason=f"the labeler could not read {which}"))
                continue
            result.append(Measured(figures=_figures(self._sentences(reference, theirs, ours))))
        return result

    def notes(self) -> Mapping[str, str]:
        said = f"{self._counts.total() - self._counts[None]} abnormal sentences"
        if self._counts[None]:
            said += f"; {self._counts[None]} more affirm no finding that the labeler knows"
        by_decile = {_decile(index): f"{self._counts[index]} abnormal sentences" for index in range(DECILES)}
        return {"abnormal_recall": said, _LATE_MINUS_EARLY: "second half of reports minus first"} | by_decile

    def _sentences(
        self, report: Report, known: Sequence[Finding], said: Sequence[Finding]
    ) -> list[tuple[float, float]]:
        """Return place (0 to 1) and recall (0 to 1) of each abnormal sentence that can be looked for."""
        claimed = {*affirmed(said)}
        result = []
        spans = report.spans or labelled(report.text, _Known(known))  # else as their findings
        for span in (span for span in spans if span.label == "abnormal"):
            names = {
                item.name
                for item in known
                if item.state == "present"
                and item.span is not None
                and span.start < item.span.end
                and item.span.start < span.end
            }
            place = (span.start + span.end) / 2 / len(report.text)
            if names:
                result.append((place, len(names & claimed) / len(names)))
            self._counts[int(DECILES * place) if names else None] += 1
        return result


class _Known(Labeler):
    """Repeats what was already read."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        self.findings = tuple(findings)

    def __call__(self, text: str) -> tuple[Finding, ...]:
        return self.findings


def _figures(sentences: Sequence[tuple[float, float]]) -> dict[str, float | Totals]:
    def between(low: float, high: float) -> tuple[float, float]:
        recalls = [recall for place, recall in sentences if low <= place < high]
        return sum(recalls), float(len(recalls))

    figures: dict[str, float | Totals] = {
        "abnormal_recall": Totals("ratio", between(0.0, 1.1)),
        _LATE_MINUS_EARLY: Totals("difference", (*between(0.5, 1.1), *between(0.0, 0.5))),
    }
    for decile in range(DECILES):
        here = [recall for place, recall in sentences if int(DECILES * place) == decile]
        figures[_decile(decile)] = Totals("ratio", (sum(here), float(len(here))))
    return figures


def _decile(place: int) -> str:
    return f"abnormal_recall/decile {place + 1:02d}"
