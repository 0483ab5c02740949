"""Does GRPO make boxes better that SFT taught? MedVol-R1 in small over seeds: own phantoms and own models.

python benchmarks/phantom_boxes.py --seeds 17 18 19
    about 18 minutes a seed on 2 CPU cores
python benchmarks/phantom_boxes.py --keep docs/results/medvol_r1
    also writes results and lock there, one file a seed
python benchmarks/phantom_boxes.py --read docs/results/medvol_r1
    prints the tables of kept results, and the figures over all seeds
python benchmarks/phantom_boxes.py --seeds 23 --check docs/results/medvol_r1
    runs a seed anew and ends with 1 where a figure left what is kept, or misses its bound

Runs `recipes/medvol_r1.toml` with `--set seed=… --set dataset.abdomen.seed=…`; stages that an earlier run has
finished are used again. Numbers are phantom numbers of the test split, with 95 % intervals resampled by
patient; the lift over seeds has a t over seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from over_seeds import ROOT, Claim, Column, Line, Study, answers, kept, questions

from evidcore.evaluate.bootstrap import Arms
from evidcore.evaluate.items import row_items
from evidcore.run.record import read_lines

TITLE = """# recipes/medvol_r1.toml over seeds

Phantom numbers of the test split, with 95 % intervals resampled by patient. Each seed has its own patients,
encoder and language model.
"""
SFT, BEFORE, AFTER = "02-sft", "03-evaluate", "06-evaluate"
AUDITS = ("04-audit", "07-audit")
AUDIT = AUDITS[1]
TASK = "answer"
PIECES = 10  # of the curve of SFT
KINDS = ("organ", "organ beside another", "organ with the lesion")


def _after(
    label: str, metric: str, stages: tuple[str, str] = (BEFORE, AFTER), *, is_main: bool = False
) -> tuple[Line, Line]:
    before, after = stages
    return (
        Line(f"{label} after SFT", before, TASK, metric, is_main),
        Line(f"{label} after GRPO", after, TASK, metric, is_main),
    )


LINES = (
    *_after("DSC", "dsc", is_main=True),
    Line("DSC, GRPO minus SFT", "learned", TASK, "dsc_change", is_main=True),
    Line("DSC of gold slices and boxes", AFTER, TASK, "oracle_dsc", is_main=True),
    *_after("IoU", "iou"),
    *_after("IoU of boxes", "box_iou"),
    *_after("share of the largest area on the named slice", "key_slice_area"),
    *_after("unparsable answers", "unparsable_rate"),
    *(line for kind in KINDS for line in _after(f"DSC, {kind}", f"dsc/{kind} (kind)")),
    Line("on another patient's volumes, DSC after GRPO", AUDIT, "another patient's volumes", "dsc"),
    Line("on blank volumes, DSC after GRPO", AUDIT, "blank volumes", "dsc"),
    *_after("own minus another patient's volumes, DSC", "grounding_margin", AUDITS, is_main=True),
    *_after("own minus the best that does not look, DSC", "own_minus_blind", AUDITS, is_main=True),
    Line("registration, DSC", AUDIT, TASK, "registration_dsc", is_main=True),
    *_after("own minus registration, DSC", "own_minus_registration", AUDITS, is_main=True),
    *_after("own minus twins, DSC", "own_minus_twin", AUDITS, is_main=True),
)


def learned(run_folder: Path) -> dict[str, Any]:
    """Return the lift of GRPO, paired by query, and the curve of SFT: its loss by tenths of the steps."""
    arms = {
        arm: {0: row_items(answers(run_folder, stage, TASK), {"name": TASK, "metric": "dsc"})}
        for arm, stage in (("before", BEFORE), ("after", AFTER))
    }
    moved = Arms(arms, patients_shared=False).contrast({"after": 1.0, "before": -1.0})
    steps = [line for line in read_lines(run_folder / "metrics.jsonl") if line["stage"] == SFT]
    size = max(1, len(steps) // PIECES)
    curve = [
        {
            "step": part[-1]["step"],
            "loss": sum(line["loss"] for line in part) / len(part),
            "token_accuracy": sum(line["token_accuracy"] for line in part) / len(part),
        }
        for start in range(0, len(steps), size)
        if (part := steps[start : start + size])
    ]
    row = {
        "name": TASK, "metric": "dsc_change", "value": moved.value, "low": moved.low, "high": moved.high,
        "questions": moved.items, "patients": moved.patients,
        "note": f"after GRPO minus after SFT, query by query; {moved.note}",
    }  # fmt: skip
    return {"stage": "learned", "rows": [row], "curve": curve}


def curve(place: Path) -> list[str]:
    """Return the table of a seed's SFT."""
    found = kept(place)["results"]["learned"]["curve"]
    return [
        "",
        f"| {place.stem}, SFT to step | " + " | ".join(str(part["step"]) for part in found) + " |",
        "|---|" + "---|" * len(found),
        "| loss a token | " + " | ".join(f"{part['loss']:.3f}" for part in found) + " |",
        "| tokens right | " + " | ".join(f"{part['token_accuracy']:.3f}" for part in found) + " |",
    ]


def by_kind(places: Sequence[Path]) -> list[str]:
    """Return a table of the kinds of queries: DSC of each seed."""
    seeds = [questions(place) for place in places]
    width = max(map(len, KINDS))
    lines = [f"{'DSC after GRPO, each seed':{width}}"]
    for kind in KINDS:
        each = ([float(row["grpo"]) for row in rows if row["kind"] == kind] for rows in seeds)
        told = "  ".join(f"{float(np.mean(values)):.3f}" if values else "-" for values in each)
        lines.append(f"{kind:{width}}  {told}")
    return lines


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
        "grpo": Column(AFTER),
        "own": Column(AUDIT, "own"),
        "registration": Column(AUDIT, "registration"),
        "blind-rule": Column(AUDIT, "blind-rule"),
        "blank": Column(AUDIT, "blank"),
        "twin": Column(AUDIT, "twin"),
    },
    claims=(
        Claim("DSC after GRPO", {"grpo": 1.0}),
        Claim("GRPO minus SFT", {"grpo": 1.0, "sft": -1.0}),
        Claim("own minus registration", {"own": 1.0, "registration": -1.0}),
        Claim("own minus the best blind rule", {"own": 1.0, "blind-rule": -1.0}),
        Claim("own minus blank volumes", {"own": 1.0, "blank": -1.0}),
        Claim("own minus twin", {"own": 1.0, "twin": -1.0}),
    ),
    by_group=by_kind,
    more=learned,
    below=curve,
    percent=False,
    least={"own minus registration, DSC after GRPO": 0.05},
)

if __name__ == "__main__":
    STUDY.main(str(__doc__), "runs/phantom_boxes")
