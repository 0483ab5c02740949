"""Does the demo learn to see? The whole pipeline over seeds: own phantoms, encoder and language model.

python benchmarks/phantom_learning.py --seeds 17 18 19 20 21
    about 45 minutes a seed on a CPU core; one process a seed can run beside another
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

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from over_seeds import ROOT, Claim, Column, Line, Study, answers, questions
from scipy import stats

from evidcore.api import Row, mean_interval, paired_interval
from evidcore.contracts.evaluating import Interval
from evidcore.evaluate.bootstrap import holm
from evidcore.evaluate.reference_lines import cluster

TITLE = """# recipes/med3d_r1.toml over seeds

Phantom numbers, in percent of the test split, with 95 % intervals resampled by patient. Each seed has its
own patients, encoder and language model.
"""
BEFORE, LONGER, AFTER, AUDIT = "05-evaluate", "07-evaluate-longer", "09-evaluate", "11-audit"
PROBE = "12-linear-probe-encoder"
CHANCE = 0.25


LINES = (
    Line("lowest AUC of a linear probe on the frozen encoder", PROBE, "linear probe", "probe_auc_min"),
    Line("accuracy of that probe, a ceiling for a straight reading", PROBE, "linear probe", "probe_accuracy"),
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


Answer = Mapping[str, Any]  # a line of answers/<stage>.jsonl
Reading = Literal[
    "choice", "lenient_choice", "rescue_choice", "log_likelihood_choice", "verdict_log_likelihood_choice"
]


def correctness(lines: Iterable[Answer], reading: Reading = "choice") -> dict[str, tuple[str, float]]:
    """Return cluster and correctness by prompt; a prompt that was asked several times gets the mean.

    Args:
        lines: answers to choice questions.
        reading: which reading of the answer counts.

    Raises:
        ValueError: if a line holds no such reading; names its prompt.
    """
    result: dict[str, tuple[str, list[float]]] = {}
    for line in lines:
        if reading not in line or "answer" not in line:
            raise ValueError(f"the answer to prompt {line.get('prompt_id')!r} holds no {reading!r}")
        owner = cluster(line["patient"], line["case_id"])
        hits = result.setdefault(line["prompt_id"], (owner, []))[1]
        hits.append(float(line[reading] == line["answer"]))
    return {prompt: (patient, sum(hits) / len(hits)) for prompt, (patient, hits) in result.items()}


def change(
    before: Iterable[Answer],
    after: Iterable[Answer],
    *,
    reading: Reading = "choice",
    before_reading: Reading | None = None,
) -> Interval:
    """Estimate how much more often `after` is right than `before`, over the questions that both answer.

    Args:
        before: answers to choice questions.
        after: answers to the same questions.
        reading: how `after` is read.
        before_reading: how `before` is read, if otherwise; "log_likelihood_choice" sets what a policy saw
            before training against what it says after.

    Raises:
        ValueError: if they answer different questions; tells how many.
    """
    old, new = correctness(before, before_reading or reading), correctness(after, reading)
    if old.keys() != new.keys():
        raise ValueError(
            f"a comparison needs the same questions: {len(old.keys() - new.keys())} are only before, "
            f"{len(new.keys() - old.keys())} only after, {len(old.keys() & new.keys())} by both"
        )
    return paired_interval(
        [right for _, right in new.values()],
        [old[prompt][1] for prompt in new],
        [patient for patient, _ in new.values()],
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
        rows.append(Row.of(task, "strict_minus_start", moved, note=note).to_json())
    return {"stage": "learned", "rows": rows}


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
    least={"own minus twins": 0.3},
)

if __name__ == "__main__":
    STUDY.main(str(__doc__), "runs/phantom_learning")
