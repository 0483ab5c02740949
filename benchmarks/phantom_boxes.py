"""Does GRPO make boxes better that SFT taught? MedVol-R1 in small over seeds: own phantoms and own models.

python benchmarks/phantom_boxes.py --seeds 17 18 19 20 21
    about 50 minutes a seed on a CPU core; one process a seed can run beside another
python benchmarks/phantom_boxes.py --keep docs/results/medvol_r1
    also writes results and lock there, one file a seed
python benchmarks/phantom_boxes.py --read docs/results/medvol_r1
    prints the tables of kept results, and the figures over all seeds
python benchmarks/phantom_boxes.py --seeds 23 --check docs/results/medvol_r1
    runs a seed anew and ends with 1 where a figure left what is kept, or misses its bound

Runs `recipes/medvol_r1.toml` with `--set seed=… --set dataset.abdomen.seed=…`; stages that an earlier run has
finished are used again. Numbers are phantom numbers of the test split, with 95 % intervals resampled by
patient; figures over seeds have a t over seeds.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from over_seeds import ROOT, Claim, Column, Line, Study, kept, questions

from evidcore.runs.folder import read_lines

TITLE = """# recipes/medvol_r1.toml over seeds

Phantom numbers of the test split, with 95 % intervals resampled by patient. Each seed has its own patients,
encoder and language model.
"""
SFT, BEFORE, LONGER, AFTER, AUDIT = (
    "02-sft", "03-evaluate", "05-evaluate-longer", "07-evaluate", "08-audit",
)  # fmt: skip
TASK = "answer"
PIECES = 10  # of the curve of SFT
KINDS = ("organ", "organ beside another", "organ with the lesion")


def _arms(label: str, metric: str, *, is_main: bool = False) -> tuple[Line, ...]:
    stages = {"after SFT": BEFORE, "after as much more SFT": LONGER, "after GRPO": AFTER}
    return tuple(Line(f"{label} {arm}", stage, TASK, metric, is_main) for arm, stage in stages.items())


LINES = (
    *_arms("DSC", "dsc", is_main=True),
    Line("DSC of gold slices and tight boxes", AFTER, TASK, "oracle_dsc", is_main=True),
    *_arms("IoU of boxes with tight ones", "box_iou", is_main=True),
    *_arms("IoU", "iou"),
    *_arms("share of the largest area on the named slice", "key_slice_area"),
    *_arms("unparsable answers", "unparsable_rate"),
    *(line for kind in KINDS for line in _arms(f"DSC, {kind}", f"dsc/{kind} (kind)")),
    *_arms("organ with the lesion, the right one of two", "right_mask", is_main=True),
    Line("on another patient's volumes, DSC", AUDIT, "another patient's volumes", "dsc"),
    Line("on blank volumes, DSC", AUDIT, "blank volumes", "dsc"),
    Line("own minus another patient's volumes, DSC", AUDIT, TASK, "grounding_margin", is_main=True),
    Line("own minus the best that does not look, DSC", AUDIT, TASK, "own_minus_blind", is_main=True),
    Line("registration, DSC", AUDIT, TASK, "registration_dsc", is_main=True),
    Line("own minus registration, DSC", AUDIT, TASK, "own_minus_registration", is_main=True),
)


def learned(run_folder: Path) -> dict[str, Any]:
    """Return the curve of SFT: its loss by tenths of the steps."""
    steps = [line for line in read_lines(run_folder / "metrics.jsonl") if line["stage"] == SFT]
    size = max(1, len(steps) // PIECES)
    result = [
        {
            "step": part[-1]["step"],
            "loss": sum(line["loss"] for line in part) / len(part),
            "token_accuracy": sum(line["token_accuracy"] for line in part) / len(part),
        }
        for start in range(0, len(steps), size)
        if (part := steps[start : start + size])
    ]
    return {"stage": "learned", "curve": result}


def curve(place: Path) -> list[str]:
    """Return the table of a seed's SFT."""
    result = kept(place)["results"]["learned"]["curve"]
    return [
        "",
        f"| {place.stem}, SFT to step | " + " | ".join(str(part["step"]) for part in result) + " |",
        "|---|" + "---|" * len(result),
        "| loss a token | " + " | ".join(f"{part['loss']:.3f}" for part in result) + " |",
        "| tokens right | " + " | ".join(f"{part['token_accuracy']:.3f}" for part in result) + " |",
    ]


def by_kind(places: Sequence[Path]) -> list[str]:
    """Return a table of the kinds of queries: mean DSC of registration and arms, GRPO by seed."""
    seeds = [questions(place) for place in places]
    shown = ("registration", "sft", "longer", "grpo")
    width = max(map(len, KINDS))
    heads = "  ".join(f"{name:>12}" for name in shown)
    lines = [f"{'DSC, mean over seeds':{width}}  {heads}  grpo, each seed"]
    for kind in KINDS:
        asked = [[row for row in rows if row["kind"] == kind] for rows in seeds]
        told = "  ".join(f"{_said(_means(asked, name)):>12}" for name in shown)
        each = "  ".join(f"{value:.3f}" for value in _means(asked, "grpo"))
        lines.append(f"{kind:{width}}  {told}  {each}")
    return lines


def _means(seeds: Sequence[Sequence[Mapping[str, str]]], column: str) -> list[float]:
    held = ([float(row[column]) for row in rows if row[column]] for rows in seeds)
    return [float(np.mean(values)) for values in held if values]


def _said(values: Sequence[float]) -> str:
    return f"{float(np.mean(values)):.3f}" if values else "-"


STUDY = Study(
    script="phantom_boxes",
    recipe=ROOT / "recipes" / "medvol_r1.toml",
    dataset="abdomen",
    last=AUDIT,
    title=TITLE,
    head="test split",
    lines=LINES,
    task=TASK,
    metric="dsc",
    group="kind",
    columns={
        "sft": Column(BEFORE),
        "longer": Column(LONGER),
        "grpo": Column(AFTER),
        "sft-boxes": Column(BEFORE, metric="box_iou"),
        "longer-boxes": Column(LONGER, metric="box_iou"),
        "grpo-boxes": Column(AFTER, metric="box_iou"),
        "sft-right": Column(BEFORE, metric="right_mask"),
        "longer-right": Column(LONGER, metric="right_mask"),
        "grpo-right": Column(AFTER, metric="right_mask"),
        "own": Column(AUDIT, "own"),
        "registration": Column(AUDIT, "registration"),
        "blind-rule": Column(AUDIT, "blind-rule"),
        "other-patient": Column(AUDIT, "other-patient"),
        "blank": Column(AUDIT, "blank"),
        "occluded": Column(AUDIT, "occluded"),
        "occluded-elsewhere": Column(AUDIT, "occluded-elsewhere"),
    },
    claims=(
        Claim("DSC after SFT", {"sft": 1.0}),
        Claim("DSC after as much more SFT", {"longer": 1.0}),
        Claim("DSC after GRPO", {"grpo": 1.0}),
        Claim("GRPO minus SFT", {"grpo": 1.0, "sft": -1.0}),
        Claim("as much more SFT minus SFT", {"longer": 1.0, "sft": -1.0}),
        Claim("GRPO minus as much more SFT", {"grpo": 1.0, "longer": -1.0}),
        Claim("  in IoU of boxes with tight ones", {"grpo-boxes": 1.0, "longer-boxes": -1.0}),
        Claim("own minus registration", {"own": 1.0, "registration": -1.0}),
        Claim("own minus the best blind rule", {"own": 1.0, "blind-rule": -1.0}),
        Claim("own minus another patient's volumes", {"own": 1.0, "other-patient": -1.0}),
        Claim("own minus blank volumes", {"own": 1.0, "blank": -1.0}),
        Claim("elsewhere covered minus the target covered", {"occluded-elsewhere": 1.0, "occluded": -1.0}),
        Claim("organ with the lesion, the right one of two, SFT", {"sft-right": 1.0}),
        Claim("  as much more SFT", {"longer-right": 1.0}),
        Claim("  GRPO", {"grpo-right": 1.0}),
    ),
    by_group=by_kind,
    more=learned,
    below=curve,
    percent=False,
    least={"own minus registration, DSC": 0.05},
)

if __name__ == "__main__":
    STUDY.main(str(__doc__), "runs/phantom_boxes")
