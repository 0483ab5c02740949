"""Does the demo learn to see? The whole pipeline over seeds: own phantoms, encoder and language model.

python benchmarks/phantom_learning.py --seeds 17 18 19 20 21
    about 45 minutes a seed on a CPU core; one process a seed can run beside another
python benchmarks/phantom_learning.py --seeds 17 --controls 17
    also trains the controls of GRPO: random reward, format alone, another patient's volumes
python benchmarks/phantom_learning.py --keep docs/results/med3d_r1
    also writes results and lock there, one file a seed
python benchmarks/phantom_learning.py --read docs/results/med3d_r1
    prints the tables of kept results, and the figures over all seeds
python benchmarks/phantom_learning.py --seeds 23 --check docs/results/med3d_r1
    runs a seed anew and ends with 1 where a figure left what is kept, or misses its bound

Runs `recipes/med3d_r1.toml` with `--set seed=… --set dataset.chest.seed=…`; stages that an earlier run has
finished are used again. Numbers are phantom numbers, in percent, of the test split, with 95 % intervals
resampled by patient.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from over_seeds import ROOT, Claim, Column, Line, Study, answers, kept, questions
from scipy import stats

from evidcore.evaluate.bootstrap import Interval, holm, mean_interval, paired_interval
from evidcore.evaluate.reference_lines import row
from evidcore.runs.controls import Reading, change

TITLE = """# recipes/med3d_r1.toml over seeds

Phantom numbers, in percent of the test split, with 95 % intervals resampled by patient. Each seed has its
own patients, encoder and language model.
"""
BEFORE, LONGER, AFTER, AUDIT = "04-evaluate", "06-evaluate-longer", "08-evaluate", "09-audit"
CHANCE = 0.25


LINES = (
    Line("lowest AUC of a linear probe on the frozen encoder", BEFORE, "linear probe", "probe_auc_min"),
    Line(
        "accuracy of that probe, a ceiling for a straight reading", BEFORE, "linear probe", "probe_accuracy"
    ),
    Line("strict accuracy after SFT", BEFORE, "choice", "strict_accuracy", is_main=True),
    Line("  its format rate", BEFORE, "choice", "format_rate"),
    Line("  option log-likelihood, answering at once", BEFORE, "choice-direct", "log_likelihood_accuracy"),
    Line("  option log-likelihood of whole answers", BEFORE, "choice", "verdict_log_likelihood_accuracy"),
    Line("  findings-F1 of reports", BEFORE, "report", "findings_f1_micro"),
    Line("strict accuracy after GRPO", AFTER, "choice", "strict_accuracy", is_main=True),
    Line("  answering at once", AFTER, "choice-direct", "strict_accuracy"),
    Line("  given a valid format", AFTER, "choice", "accuracy_given_valid_format"),
    Line("  its format rate", AFTER, "choice", "format_rate"),
    Line("  option log-likelihood, answering at once", AFTER, "choice-direct", "log_likelihood_accuracy"),
    Line("  option log-likelihood of whole answers", AFTER, "choice", "verdict_log_likelihood_accuracy"),
    Line("  findings-F1 of reports", AFTER, "report", "findings_f1_micro"),
    Line("strict accuracy after as much more SFT", LONGER, "choice", "strict_accuracy", is_main=True),
    Line("  answering at once", LONGER, "choice-direct", "strict_accuracy"),
    Line("  findings-F1 of reports", LONGER, "report", "findings_f1_micro"),
    Line("one option at random", AFTER, "choice", "uniform_chance", is_main=True),
    Line("best blind rule", AFTER, "choice", "prior_only", is_main=True),
    Line("perfect perception", AFTER, "choice", "perfect_perception"),
    Line("on another patient's volumes", AUDIT, "another patient's volumes", "strict_accuracy", is_main=True),
    Line("  minus the best blind rule", AUDIT, "choice", "other_patient_minus_prior_only"),
    Line("on blank volumes", AUDIT, "blank volumes", "strict_accuracy"),
    Line("own minus another patient's volumes", AUDIT, "choice", "grounding_margin", is_main=True),
    Line("own minus the best that does not look", AUDIT, "choice", "own_minus_blind", is_main=True),
    Line("own minus twins", AUDIT, "choice", "own_minus_twin", is_main=True),
    Line(
        "after GRPO minus the start's log-likelihood",
        "learned",
        "choice-direct",
        "strict_minus_start",
        is_main=True,
    ),
    Line("  minus the start's, of whole answers", "learned", "choice", "strict_minus_start"),
)


def learned(run_folder: Path) -> dict[str, Any]:
    """Return strict accuracy after GRPO minus option-log-likelihood accuracies before, paired by question."""
    rows = []
    readings: Mapping[str, Reading] = {
        "choice-direct": "log_likelihood_choice",
        "choice": "verdict_log_likelihood_choice",
    }
    for task, reading in readings.items():
        before, after = answers(run_folder, BEFORE, task), answers(run_folder, AFTER, "choice")
        moved = change(before, after, before_reading=reading)
        note = f"strict accuracy after GRPO minus the start's {reading.replace('_', ' ')}"
        rows.append(row(task, "strict_minus_start", moved, note=note).to_json())
    return {"stage": "learned", "rows": rows}


def controls(place: Path) -> list[str]:
    """Return the table of a seed's training controls, if it has some."""
    results = kept(place)["results"]
    if "controls" not in results:
        return []
    rows = results["controls"]["rows"]
    shown = (
        ("choice", "strict_accuracy"),
        ("choice", "format_rate"),
        ("choice-direct", "log_likelihood_change"),
        ("choice", "log_likelihood_change"),
        ("choice", "verdict_log_likelihood_change"),
    )
    heads = (
        "strict accuracy",
        "format rate",
        "change of option log-likelihood, answering at once",
        "change of option log-likelihood, bare letter after a prompt that asks to think",
        "change of option log-likelihood of whole answers",
    )
    lines = ["", f"| {place.stem}, same steps | " + " | ".join(heads) + " |", "|---|" + "---|" * len(shown)]
    for arm in dict.fromkeys(item["name"] for item in rows):
        cells = [
            STUDY.said(
                next(
                    (one for one in rows if (one["name"], one["task"], one["metric"]) == (arm, *which)), None
                )
            )
            for which in shown
        ]
        lines.append(f"| {arm} | " + " | ".join(cells) + " |")
    return lines


def by_finding(places: Sequence[Path]) -> list[str]:
    """Return a table of findings, pooled over seeds: own accuracy against chance, and own minus twin.

    Patients are resampled. Bounds and p values are one-sided, p is Holm's over the findings.
    """
    seeds = [questions(place) for place in places]  # patients' names hold the seed
    findings = sorted({row["finding"] for rows in seeds for row in rows})
    told, p_values = [], []
    for finding in findings:
        each = [[row for row in rows if row["finding"] == finding] for rows in seeds]
        own = [row for rows in each for row in rows]
        twins = [row for row in own if row["twin"]]
        seen = mean_interval(_numbers(own, "own"), [row["patient"] for row in own])
        patients = [row["patient"] for row in twins]
        lost = paired_interval(_numbers(twins, "own"), _numbers(twins, "twin"), patients)
        p_values.append((above(seen, CHANCE, CHANCE), above(lost, 0.0, 0.5)))
        rates = (100 * float(np.mean(_numbers(rows, "own"))) for rows in each)
        told.append((seen, lost, " ".join(f"{rate:3.0f}" for rate in rates)))
    width = max(map(len, findings))
    heads = "  own  at least       p  own-twin  at least       p  own, each seed"
    lines = [f"{'one-sided, Holm':{width}} {heads}"]
    corrected = zip(*(holm(column) for column in zip(*p_values, strict=True)), strict=True)
    for finding, (seen, lost, each_seed), (first, second) in zip(findings, told, corrected, strict=True):
        lines.append(
            f"{finding:{width}} {100 * seen.value:5.1f}  {least(seen):>8} {first:7.4f}"
            f"     {100 * lost.value:5.1f}  {least(lost):>8} {second:7.4f}  {each_seed}"
        )
    return lines


def above(found: Interval, bar: float, coin: float) -> float:
    """Return p against a figure of at most `bar`; all values equal: that of a coin for each patient."""
    if found.standard_error is not None:
        return float(stats.norm.sf((found.value - bar) / found.standard_error))
    return coin**found.patients if found.value == 1.0 else 1.0


def least(found: Interval) -> str:
    """Return the one-sided 95 % lower bound of a figure in percent, as text."""
    if found.standard_error is not None:
        return f"{100 * (found.value - float(stats.norm.ppf(0.95)) * found.standard_error):.1f}"
    return f"{100 * 0.05 ** (1 / found.patients):.1f}" if found.value == 1.0 else "-"


def _numbers(rows: Sequence[Mapping[str, str]], column: str) -> list[float]:
    return [float(row[column]) for row in rows]


STUDY = Study(
    script="phantom_learning",
    recipe=ROOT / "recipes" / "med3d_r1.toml",
    dataset="chest",
    last=AUDIT,
    title=TITLE,
    head="% of the test split",
    lines=LINES,
    task="choice",
    metric="strict_accuracy",
    group="finding",
    columns={
        "sft": Column(BEFORE),
        "longer": Column(LONGER),
        "grpo": Column(AFTER),
        "own": Column(AUDIT, "own"),
        "twin": Column(AUDIT, "twin"),
        "blind-rule": Column(AUDIT, "blind-rule"),
        "blind-arm": Column(AUDIT, "blind-arm"),
        "blank": Column(AUDIT, "blank"),
    },
    claims=(
        Claim("own", {"own": 1.0}),
        Claim("own minus twin", {"own": 1.0, "twin": -1.0}),
        Claim("own minus the best blind rule", {"own": 1.0, "blind-rule": -1.0}),
        Claim("own minus the trained blind arm", {"own": 1.0, "blind-arm": -1.0}),
        Claim("own minus blank volumes", {"own": 1.0, "blank": -1.0}),
        Claim("GRPO minus SFT", {"grpo": 1.0, "sft": -1.0}),
        Claim("as much more SFT minus SFT", {"longer": 1.0, "sft": -1.0}),
        Claim("GRPO minus as much more SFT", {"grpo": 1.0, "longer": -1.0}),
    ),
    by_group=by_finding,
    more=learned,
    below=controls,
    least={"own minus twins": 0.3},
)

if __name__ == "__main__":
    STUDY.main(str(__doc__), "runs/phantom_learning")
