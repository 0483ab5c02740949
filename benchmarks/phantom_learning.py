"""Does the demo learn to see? The whole pipeline over seeds: own phantoms, encoder and language model.

python benchmarks/phantom_learning.py --seeds 17 18 19 --controls 17
    about 20 minutes a seed on 2 CPU cores, and 20 more for each seed's controls
python benchmarks/phantom_learning.py --keep docs/results/med3d_r1
    also copies results, recipe and lock there
python benchmarks/phantom_learning.py --read docs/results/med3d_r1
    prints the tables of kept results

Runs `recipes/med3d_r1.toml` with `--set seed=… --set dataset.chest.seed=…`; stages that an earlier run has
finished are used again. Numbers are phantom numbers, in percent, of the test split, with 95 % intervals
resampled by patient.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from evidcore.evaluate.compare import Reading, change
from evidcore.evaluate.reference_lines import row
from evidcore.run.keeping import keep_run
from evidcore.run.record import read_lines

RECIPE = Path(__file__).parents[1] / "recipes" / "med3d_r1.toml"
TITLE = """# recipes/med3d_r1.toml over three seeds

Phantom numbers, in percent of the test split, with 95 % intervals resampled by patient. Each seed has its
own patients, encoder and language model. Written by
`python benchmarks/phantom_learning.py --keep docs/results/med3d_r1`, printed again by
`python benchmarks/phantom_learning.py --read docs/results/med3d_r1`.
"""
BEFORE, AFTER, AUDIT = "04-evaluate", "06-evaluate", "07-audit"


class Line(NamedTuple):
    """A line of the tables: what it is, and where a kept result says it."""

    label: str
    file: str
    name: str  # or task
    metric: str
    is_main: bool = False  # also in the summary


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
    Line("prior-only ceiling", AFTER, "choice", "prior_only", is_main=True),
    Line("perfect perception", AFTER, "choice", "perfect_perception"),
    Line("on another patient's volumes", AUDIT, "another patient's volumes", "strict_accuracy", is_main=True),
    Line("  minus the prior-only ceiling", AUDIT, "choice", "other_patient_minus_prior_only"),
    Line("on blank volumes", AUDIT, "blank volumes", "strict_accuracy"),
    Line("own minus another patient's volumes", AUDIT, "choice", "grounding_margin", is_main=True),
    Line(
        "after GRPO minus the start's log-likelihood",
        "learned",
        "choice-direct",
        "strict_minus_start",
        is_main=True,
    ),
    Line("  minus the start's, of whole answers", "learned", "choice", "strict_minus_start"),
)


def run(seed: int, root: Path, *, controls: bool) -> Path:
    """Run the pipeline of a seed and return its run folder."""
    command = [
        sys.executable, "-m", "evidcore", "run", str(RECIPE), "--out", str(root / f"seed-{seed}"),
        "--set", f"seed={seed}", "--set", f"dataset.chest.seed={seed}",
    ]  # fmt: skip
    subprocess.run([*command, *["--with-controls"][: int(controls)]], check=True)
    return newest(root / f"seed-{seed}")


def newest(folder: Path) -> Path:
    """Return the newest finished run below a folder."""
    runs = sorted(folder.glob(f"*/2*/results/{AUDIT}.json"))
    if not runs:
        sys.exit(f"{folder}: holds no finished run of {RECIPE.name}.")
    return runs[-1].parents[1]


def learned(run_folder: Path) -> dict[str, Any]:
    """Return strict accuracy after GRPO minus option-log-likelihood accuracies before, paired by question."""

    def answers(name: str, task: str) -> list[dict[str, Any]]:
        lines = read_lines(run_folder / "answers" / f"{name}.jsonl")
        return [line for line in lines if line["task"] == task]

    rows = []
    readings: Mapping[str, Reading] = {
        "choice-direct": "log_likelihood_choice",
        "choice": "verdict_log_likelihood_choice",
    }
    for task, reading in readings.items():
        moved = change(answers(BEFORE, task), answers(AFTER, "choice"), before_reading=reading)
        note = f"strict accuracy after GRPO minus the start's {reading.replace('_', ' ')}"
        rows.append(row(task, "strict_minus_start", moved, note=note))
    return {"stage": "learned", "rows": rows}


def keep(run_folder: Path, place: Path) -> None:
    """Copy what the tables need; no answer, rollout or report, and no path of this machine."""
    keep_run(run_folder, place, RECIPE.parents[1])
    text = json.dumps(learned(run_folder), indent=1) + "\n"
    (place / "learned.json").write_text(text, encoding="utf-8")


def value(place: Path, line: Line) -> Mapping[str, Any] | None:
    """Return a row of a kept result."""
    rows = json.loads((place / f"{line.file}.json").read_text(encoding="utf-8"))["rows"]
    return next((item for item in rows if (item["name"], item["metric"]) == (line.name, line.metric)), None)


def said(item: Mapping[str, Any] | None) -> str:
    """Return a value with its interval, in percent."""
    if item is None or item["value"] is None:
        return "-"
    if item["low"] is None:
        return f"{100 * item['value']:.1f}"
    return f"{100 * item['value']:.1f} [{100 * item['low']:.1f}, {100 * item['high']:.1f}]"


def tables(places: Sequence[Path]) -> str:
    """Return the tables as Markdown."""
    lines = ["| % of the test split | " + " | ".join(place.name for place in places) + " | mean |"]
    lines.append("|---|" + "---|" * (len(places) + 1))
    for line in LINES:
        found = [value(place, line) for place in places]
        mean = [item["value"] for item in found if item is not None and item["value"] is not None]
        average = f"{100 * sum(mean) / len(mean):.1f}" if mean else "-"
        lines.append(f"| {line.label} | " + " | ".join(map(said, found)) + f" | {average} |")
    for place in places:
        if (place / "controls.json").is_file():
            lines += ["", *controls(place)]
    return "\n".join(lines)


def summary(places: Sequence[Path]) -> str:
    """Return the main figures as plain text: mean over seeds, lowest and highest."""
    told = [
        f"phantom numbers, % of the test split, {', '.join(place.name for place in places)}: mean (range)"
    ]
    for line in LINES:
        if not line.is_main:
            continue
        values = [100 * item["value"] for place in places if (item := value(place, line))]
        told.append(
            f"{line.label.strip():48} {sum(values) / len(values):5.1f} ({min(values):.1f}-{max(values):.1f})"
        )
    return "\n".join(told) + "\n"


def controls(place: Path) -> list[str]:
    """Return the table of a seed's training controls."""
    rows = json.loads((place / "controls.json").read_text(encoding="utf-8"))["rows"]
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
    lines = [f"| {place.name}, same steps | " + " | ".join(heads) + " |", "|---|" + "---|" * len(shown)]
    for arm in dict.fromkeys(item["name"] for item in rows):
        cells = [
            said(
                next(
                    (one for one in rows if (one["name"], one["task"], one["metric"]) == (arm, *which)), None
                )
            )
            for which in shown
        ]
        lines.append(f"| {arm} | " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    """Run what is asked and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[17, 18, 19])
    parser.add_argument("--controls", type=int, nargs="*", default=[], help="seeds whose controls are run")
    parser.add_argument("--out", type=Path, default=Path("runs/phantom_learning"))
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--read", type=Path)
    given = parser.parse_args()
    if given.read is not None:
        sys.stdout.write(tables(sorted(given.read.glob("seed-*"))) + "\n")
        return
    place = given.keep or given.out / "kept"
    for seed in given.seeds:
        keep(run(seed, given.out, controls=seed in given.controls), place / f"seed-{seed}")
    write_up(place)
    sys.stdout.write(tables(sorted(place.glob("seed-*"))) + "\n")


def write_up(place: Path) -> None:
    """Write the tables and the summary beside the kept results."""
    places = sorted(place.glob("seed-*"))
    (place / "README.md").write_text(f"{TITLE}\n{tables(places)}\n", encoding="utf-8")
    (place / "summary.txt").write_text(summary(places), encoding="utf-8")


if __name__ == "__main__":
    main()
