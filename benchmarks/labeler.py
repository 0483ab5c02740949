"""How well the rule-based labelers read real chest CT reports: precision, recall and F1 for each finding.

EVID_SHARED_DATA=… python benchmarks/labeler.py [--half tune] [--json]        1 core, 10 s, no download

Reads `ctrate_reports/train.csv`: reports with the 18 CT-RATE labels set by hand. Rows fall into two halves by
a hash of their id. The rules were tuned on the half `tune`; figures are of the half `held-out`, without the
reports that stand word by word in the other half too. Prints figures and no text.
"""

import argparse
import csv
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from evidcore_plugin_reports.agreement import states
from evidcore_plugin_reports.findings import CT_RATE_FINDINGS
from evidcore_plugin_reports.labelers import NegationRules, Phrases

from evidcore.api import Labeler
from evidcore.case import State
from evidcore.evaluate.bootstrap import ratio_interval

NEEDED = 0.85  # macro F1
DRAWS = 4000
HALVES = ("tune", "held-out")
Row = tuple[str, str, Mapping[str, bool]]  # id, text, label by finding


def half_of(row_id: str) -> str:
    """Return which half a row falls into."""
    return HALVES[hashlib.sha256(row_id.encode()).digest()[0] % 2]


def rows(table: Path) -> Iterator[Row]:
    """Yield every row of the label file."""
    with table.open(newline="", encoding="utf-8") as file:
        for line in csv.DictReader(file):
            labels = {name: line[name.capitalize()] == "1" for name in CT_RATE_FINDINGS}
            yield line["AccessionNo"], line["report_text"], labels


def one_half(every: Sequence[Row], half: str) -> list[Row]:
    """Return the rows of a half whose text stands in no row of the other."""
    others = {text for row_id, text, _ in every if half_of(row_id) != half}
    return [row for row in every if half_of(row[0]) == half and row[1] not in others]


def measure(labeler: Labeler, some: Sequence[Row]) -> dict[str, Any]:
    """Return figures by finding and over all; what a labeler calls uncertain counts as not affirmed.

    No patients are known of these reports; equal texts are resampled together.
    """
    said = [states(labeler(text)) for _, text, _ in some]
    by_name = [states(Phrases()(text)) for _, text, _ in some]
    told = np.array([[item.get(name) == "present" for name in CT_RATE_FINDINGS] for item in said])
    true = np.array([[labels[name] for name in CT_RATE_FINDINGS] for *_, labels in some])
    texts = [text for _, text, _ in some]
    result: dict[str, Any] = {"findings": {}}
    for index, name in enumerate(CT_RATE_FINDINGS):
        hit, wrong = told[:, index] & true[:, index], told[:, index] != true[:, index]
        interval = ratio_interval(2.0 * hit, 2.0 * hit + wrong, texts)
        result["findings"][name] = {
            "reports": int(true[:, index].sum()),
            "precision": float(hit.sum() / max(1, told[:, index].sum())),
            "recall": float(hit.sum() / max(1, true[:, index].sum())),
            "f1": interval.value,
            "low": interval.low,
            "high": interval.high,
            "errors": dict(
                errors(
                    [item.get(name) for item in said], [item.get(name) for item in by_name], true[:, index]
                )
            ),
        }
    result["macro_f1"] = macro_f1(told, true)
    result["low"], result["high"] = macro_interval(told, true, texts)
    return result


def errors(
    said: Sequence[State | None], by_name: Sequence[State | None], true: Sequence[bool]
) -> Counter[str]:
    """Count wrong readings by what the labeler made of the report.

    A false alarm is "by name" where the report affirms the finding under its very name too, in a sentence
    without any denial or doubt: most likely the label is wrong.
    """
    kinds: Counter[str] = Counter()
    for state, named, is_true in zip(said, by_name, true, strict=True):
        if is_true and state != "present":
            kinds[{None: "not named", "absent": "denied", "uncertain": "doubted"}[state]] += 1
        elif state == "present" and not is_true:
            kinds["false alarm"] += 1
            kinds["by name"] += named == "present"
    return kinds


def macro_f1(told: np.ndarray[Any, Any], true: np.ndarray[Any, Any]) -> float:
    """Return the mean over findings of F1, of two (report, finding) tables."""
    both = 2.0 * (told & true).sum(axis=0)
    return float(np.mean(both / (both + (told != true).sum(axis=0))))


def macro_interval(
    told: np.ndarray[Any, Any], true: np.ndarray[Any, Any], texts: Sequence[str]
) -> tuple[float, float]:
    """Return a 95 % percentile bootstrap over texts."""
    rng = np.random.default_rng(0)
    _, text_of = np.unique(texts, return_inverse=True)
    count = int(text_of.max()) + 1
    both, wrong = np.zeros((count, told.shape[1])), np.zeros((count, told.shape[1]))
    np.add.at(both, text_of, 2.0 * (told & true))
    np.add.at(wrong, text_of, told != true)
    drawn = []
    for _ in range(DRAWS):
        weights = np.bincount(rng.integers(count, size=count), minlength=count)
        above, below = weights @ both, weights @ (both + wrong)
        drawn.append(np.mean(above[below > 0] / below[below > 0]))
    low, high = np.quantile(drawn, (0.025, 0.975))
    return float(low), float(high)


def written(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the figures as lines."""
    yield f"{found['reports']} reports of the half {found['half']!r}; {found['left_out']} left out"
    for name, item in found["labelers"].items():
        yield ""
        yield f"{name}: macro F1 {item['macro_f1']:.3f} [{item['low']:.3f}, {item['high']:.3f}]"
        yield (
            f"  {'finding':34} {'reports':>7} {'precision':>9} {'recall':>6} {'F1':>5} {'95 %':>14} "
            f"{'false alarm':>11} {'(by name)':>9} {'not named':>9} {'denied':>6} {'doubted':>7}"
        )
        for finding, row in item["findings"].items():
            counts = row["errors"]
            kinds = [
                counts.get(kind, 0) for kind in ("false alarm", "by name", "not named", "denied", "doubted")
            ]
            errors = "{:11} {:9} {:9} {:6} {:7}".format(*kinds)
            yield (
                f"  {finding:34} {row['reports']:7} {row['precision']:9.3f} {row['recall']:6.3f} "
                f"{row['f1']:5.3f} [{row['low']:.3f}, {row['high']:.3f}] {errors}"
            )
    yield ""
    yield f"needed of negation-rules: macro F1 {NEEDED}"


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--half", choices=HALVES, default="held-out")
    options.add_argument("--json", action="store_true")
    given = options.parse_args()
    shared = os.environ.get("EVID_SHARED_DATA", Path(__file__).parents[1] / "../shared/data")
    table = Path(shared) / "ctrate_reports" / "train.csv"
    if not table.is_file():
        print(f"{table}: not here, so nothing was measured. Set EVID_SHARED_DATA.")
        return
    every = list(rows(table))
    some = one_half(every, given.half)
    labelers: dict[str, Labeler] = {"negation-rules": NegationRules(), "phrases": Phrases()}
    result = {
        "half": given.half,
        "reports": len(some),
        "left_out": sum(half_of(row_id) == given.half for row_id, *_ in every) - len(some),
        "labelers": {name: measure(labeler, some) for name, labeler in labelers.items()},
    }
    print(json.dumps(result, indent=1) if given.json else "\n".join(written(result)))


if __name__ == "__main__":
    main()
