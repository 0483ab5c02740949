"""Does the demo learn to see? The whole pipeline over seeds: own phantoms, encoder and language model.

python benchmarks/phantom_learning.py --seeds 17 18 19 --controls 17
    about 20 minutes a seed on 2 CPU cores, and 20 more for each seed's controls
python benchmarks/phantom_learning.py --keep docs/results/med3d_r1
    also writes results and lock there, one file a seed
python benchmarks/phantom_learning.py --read docs/results/med3d_r1
    prints the tables of kept results
python benchmarks/phantom_learning.py --seeds 23 --check docs/results/med3d_r1
    runs a seed anew and ends with 1 where a figure left what is kept, or misses its bound

Runs `recipes/med3d_r1.toml` with `--set seed=… --set dataset.chest.seed=…`; stages that an earlier run has
finished are used again. Numbers are phantom numbers, in percent, of the test split, with 95 % intervals
resampled by patient.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from over_seeds import ROOT, Line, Study, answers, kept

from evidcore.evaluate.reference_lines import row
from evidcore.run.controls import Reading, change

TITLE = """# recipes/med3d_r1.toml over seeds

Phantom numbers, in percent of the test split, with 95 % intervals resampled by patient. Each seed has its
own patients, encoder and language model.
"""
BEFORE, AFTER, AUDIT = "04-evaluate", "06-evaluate", "07-audit"


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
    Line("  without thinking", AFTER, "choice-direct", "strict_accuracy"),
    Line("  given a valid format", AFTER, "choice", "accuracy_given_valid_format"),
    Line("  its format rate", AFTER, "choice", "format_rate"),
    Line("  option log-likelihood, answering at once", AFTER, "choice-direct", "log_likelihood_accuracy"),
    Line("  option log-likelihood of whole answers", AFTER, "choice", "verdict_log_likelihood_accuracy"),
    Line("  findings-F1 of reports", AFTER, "report", "findings_f1_micro"),
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


STUDY = Study(
    script="phantom_learning",
    recipe=ROOT / "recipes" / "med3d_r1.toml",
    dataset="chest",
    last=AUDIT,
    title=TITLE,
    head="% of the test split",
    lines=LINES,
    more=learned,
    below=controls,
    least={"own minus twins": 0.3},
)

if __name__ == "__main__":
    STUDY.main(str(__doc__), "runs/phantom_learning")
