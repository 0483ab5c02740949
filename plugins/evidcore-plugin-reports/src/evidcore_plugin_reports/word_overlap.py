"""Metrics `bleu` and `rouge-l`: words that a report shares with its reference, in order."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from evidcore.api import Metric, Unscored
from evidcore.contracts import Measured, TextSample, Totals
from evidcore_plugin_reports.sentences import measured, words

ORDERS = (1, 2, 3, 4)


class Bleu(Metric):
    """BLEU-1 to BLEU-4 by sacreBLEU, once over all reports and once as the mean over reports.

    `bleu_N_corpus` pools the counts of all reports and smooths nothing: what papers report.
    `bleu_N_by_report` is the mean over reports, each smoothed and cut to the orders that its length allows,
    as sacreBLEU does for sentences. The two differ, and only numbers of one kind can be set side by side.

    Args:
        tokenize: sacreBLEU's tokenizer; "13a" splits off punctuation, which then counts as words.
        lowercase: compare without regard to case.

    Source:
        Papineni et al. 2002, BLEU, ACL. Post 2018, A Call for Clarity in Reporting BLEU Scores, WMT.
    """

    def __init__(
        self, *, tokenize: Literal["13a", "intl", "char", "zh", "none"] = "13a", lowercase: bool = True
    ) -> None:
        self.tokenize = tokenize
        self.lowercase = lowercase

    def __call__(self, texts: Sequence[TextSample]) -> Sequence[Measured | Unscored]:
        """Return the counts and the report's own score for each order."""
        from sacrebleu.metrics.bleu import BLEU

        counter = BLEU(
            tokenize=self.tokenize, lowercase=self.lowercase, effective_order=True, max_ngram_order=ORDERS[-1]
        )

        def figures(text: str, reference: str) -> dict[str, float | Totals]:
            score = counter.sentence_score(text, [reference])
            result: dict[str, float | Totals] = {}
            for order in ORDERS:
                counts, totals = score.counts[:order], score.totals[:order]
                lengths = (score.sys_len, score.ref_len)
                result[f"bleu_{order}_corpus"] = Totals("bleu", (*counts, *totals, *lengths))
            for order in ORDERS:
                alone = BLEU.compute_bleu(
                    score.counts[:order], score.totals[:order], score.sys_len, score.ref_len,
                    smooth_method="exp", effective_order=True, max_ngram_order=order,
                )  # fmt: skip
                result[f"bleu_{order}_by_report"] = alone.score / 100
            return result

        return measured(texts, figures)

    @staticmethod
    def pool(sums: Float[np.ndarray[Any, Any], "row number"]) -> Float[np.ndarray[Any, Any], " row"]:
        """Return BLEU-n, not smoothed: of matches and n-grams of 1 … n words, and both lengths in words."""
        from sacrebleu.metrics.bleu import BLEU

        order = (sums.shape[1] - 2) // 2
        rows = sums.astype(np.int64).tolist()
        scores = [
            BLEU.compute_bleu(row[:order], row[order:-2], row[-2], row[-1], max_ngram_order=order).score
            for row in rows
        ]
        return np.array(scores) / 100

    def notes(self) -> Mapping[str, str]:
        ways = {"corpus": "counts of all reports pooled", "by_report": "mean over reports, each smoothed"}
        return {f"bleu_{order}_{way}": note for order in ORDERS for way, note in ways.items()}


class RougeL(Metric):
    """ROUGE-L: the longest common subsequence of words, as F1, precision and recall; means over reports.

    A report of m words, a reference of n and a longest common subsequence of l words have precision l / m
    and recall l / n. F1 weighs both alike, as Google's rouge-score does; the captioning tools of COCO weigh
    recall 1.44 times as much.

    Source:
        Lin 2004, ROUGE, Text Summarization Branches Out, section 3.1.
    """

    def __call__(self, texts: Sequence[TextSample]) -> Sequence[Measured | Unscored]:
        """Return F1, precision and recall of each report; 0 for one without a word."""
        from rapidfuzz.distance import LCSseq

        def figures(text: str, reference: str) -> dict[str, float]:
            ours, theirs = words(text), words(reference)
            common = LCSseq.similarity(ours, theirs)
            return {
                "rouge_l": 2 * common / (len(ours) + len(theirs)),
                "rouge_l_precision": common / len(ours) if ours else 0.0,
                "rouge_l_recall": common / len(theirs),
            }

        return measured(texts, figures)
