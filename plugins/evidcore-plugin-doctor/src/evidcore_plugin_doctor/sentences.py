"""Where in a report normal and abnormal sentences stand, and how long reports are.

Reports tell the normal first. A model trained on them can lower its loss by position alone.

Source:
    Lai et al. 2026, Med3D-R1, arXiv:2602.01200, figures 1 and 3.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from evidcore_plugin_reports.sentences import labelled, sentences

from evidcore.api import Labeler, Report, Span
from evidcore.contracts import LabelError

BINS = 20  # of a report's length
LABELS = ("normal", "abnormal")
QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


def positions(reports: Sequence[Report], labeler: Labeler | None) -> dict[str, Any] | None:
    """Return how densely normal and abnormal sentences stand along a report, None where no label is known.

    A sentence stands where its middle is, 0 at the start of the report and 1 at its end, in characters. A
    density of 1 everywhere is a report in which position tells nothing.

    Args:
        reports: texts; their spans are taken where they have any.
        labeler: labels the sentences of the others: abnormal if it finds anything present or uncertain in
            one, normal if all that it finds is absent. What it cannot read is counted as "unread".
    """
    places: dict[str, list[float]] = collections.defaultdict(list)
    sources: collections.Counter[str] = collections.Counter()
    for report in reports:
        if not report.text or not (report.spans or labeler):
            continue
        spans: Sequence[Span] = report.spans
        source = "spans"
        if not spans and labeler is not None:
            try:
                spans, source = list(labelled(report.text, labeler)), "labeler"
            except LabelError:
                source = "unread"
        sources[source] += 1
        for span in spans:
            places[span.label].append((span.start + span.end) / 2 / len(report.text))
    if not any(places[label] for label in LABELS):
        return None
    result: dict[str, Any] = {"bins": BINS, "reports": dict(sources), "unlabelled": len(places["other"])}
    for label in LABELS:
        counts, _ = np.histogram(places[label], bins=BINS, range=(0, 1))
        total = int(counts.sum())
        result[label] = {
            "sentences": total,
            "mean_position": float(np.mean(places[label])) if total else None,
            "density": [float(count) * BINS / total for count in counts] if total else None,
        }
    return result


def lengths(reports: Sequence[Report]) -> dict[str, Any]:
    """Return how many words and sentences the reports have."""
    words = [len(re.findall(r"\w+", report.text)) for report in reports]
    return {
        "reports": len(reports),
        "words": quantiles(words),
        "sentences": quantiles([sum(1 for _ in sentences(report.text)) for report in reports]),
    }


def quantiles(numbers: Sequence[float]) -> dict[str, float] | None:
    """Return the distribution of some numbers, None where there are none."""
    if not numbers:
        return None
    result = np.quantile(np.asarray(numbers, dtype=np.float64), QUANTILES)
    return {f"{100 * share:g} %": float(value) for share, value in zip(QUANTILES, result, strict=True)}
