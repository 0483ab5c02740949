"""Measure what the metrics of reports that need nothing cost, on generated reports.

python benchmarks/report_metrics.py [--reports 200] [--sentences 15]      half a minute on an idle core

Seconds are processor time of one thread: what other programs take of the machine does not count. ROUGE-L is
also computed by Google's rouge-score, to show what the choice of library is worth.
"""

import argparse
import random
import time
from collections.abc import Callable
from typing import Any

from evidcore_plugin_reports.findings import CT_RATE_FINDINGS
from evidcore_plugin_reports.labelers import NegationRules
from evidcore_plugin_reports.sentences import words
from evidcore_plugin_reports.word_overlap import RougeL

from evidcore.api import Case, Report
from evidcore.contracts import Measured, TextSample
from evidcore.evaluate.measuring import NamedMetric, measure
from evidcore.registry import factory

METRICS = ("bleu", "rouge-l", "cider", "abnormal-recall")  # those that need no weights and no service
FILLER = (
    "the of lung both upper lobe heart size normal vessels calibre mediastinum main trachea seen open wall "
    "nodular millimetric left right patchy ground density area bilateral in and at level is was observed"
)
SPOKEN = FILLER.split()


def sentence(rng: random.Random) -> str:
    """Return a sentence of about 14 words; every third speaks of a finding."""
    if rng.random() < 1 / 3:
        denied = "no " if rng.random() < 0.5 else ""
        tail = " ".join(rng.choices(SPOKEN, k=8))
        return f"There is {denied}{rng.choice(CT_RATE_FINDINGS)} in the {tail}."
    return " ".join(rng.choices(SPOKEN, k=14)).capitalize() + "."


def written(reports: int, sentences: int) -> list[TextSample]:
    """Return generated reports, each beside another one as reference."""
    rng = random.Random(0)

    def text() -> str:
        return " ".join(sentence(rng) for _ in range(sentences))

    return [
        TextSample(
            case=Case(id=f"case-{number}", patient=f"patient-{number}", volumes=()),
            asked="Write the report.",
            text=text(),
            reference=Report(text=text()),
        )
        for number in range(reports)
    ]


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the processor time that `work` took, and what it gave."""
    start = time.process_time()
    made = work()
    return time.process_time() - start, made


def main() -> None:
    """Print a line for each metric."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--reports", type=int, default=200)
    parser.add_argument("--sentences", type=int, default=15)
    asked = parser.parse_args()
    texts = written(asked.reports, asked.sentences)
    patients = [str(text.case.patient) for text in texts]
    count = sum(len(words(text.text)) for text in texts) / len(texts)
    print(f"{asked.reports} reports of {asked.sentences} sentences, {count:.0f} words each")
    print(f"{'metric':24} {'measuring s':>12} {'intervals s':>12} {'figures':>8}")
    totals = [0.0, 0.0]
    for use in METRICS:
        given = {"labeler": NegationRules()}
        metric = factory.build("metric", {"use": use}, given=given, where="benchmark")
        named = [NamedMetric(metric=metric, name=use)]
        measure(named, texts[:2], "report")  # imports and compiled patterns
        spent, found = seconds(lambda named=named: measure(named, texts, "report"))
        drawing, rows = seconds(lambda found=found: found.rows("report", patients))
        print(f"{use:24} {spent:12.2f} {drawing:12.2f} {len(rows):8d}")
        totals = [totals[0] + spent, totals[1] + drawing]
    print(f"{'all four':24} {totals[0]:12.2f} {totals[1]:12.2f}")
    by_google(texts)


def by_google(texts: list[TextSample]) -> None:
    """Print what rouge-score takes for the same ROUGE-L, and how far its values are apart."""
    from rouge_score.rouge_scorer import RougeScorer

    class Words:
        def tokenize(self, text: str) -> list[str]:
            return words(text)

    scorer = RougeScorer(["rougeL"], tokenizer=Words())

    def scored() -> list[float]:
        return [
            float(scorer.score(text.reference.text if text.reference else "", text.text)["rougeL"].fmeasure)
            for text in texts
        ]

    spent, theirs = seconds(scored)
    ours = [item.figures["rouge_l"] for item in RougeL()(texts) if isinstance(item, Measured)]
    apart = max(abs(item - other) for item, other in zip(ours, theirs, strict=True))
    print(f"{'rouge-l by rouge-score':24} {spent:12.2f} {'':12} values apart by {apart:.0e}")


if __name__ == "__main__":
    main()
