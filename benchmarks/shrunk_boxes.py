"""Is what GRPO adds to MedVol-R1's boxes no more than their margin? A rule that knows it shrinks SFT's boxes.

OMP_NUM_THREADS=1 python benchmarks/shrunk_boxes.py RUN …          about a minute a run on a CPU core
python benchmarks/shrunk_boxes.py RUN … --keep docs/results/shrunk_boxes.txt

RUN is a finished run of recipes/medvol_r1.toml. Gold boxes there are drawn 2 voxels wider on each side than
the organ. The boxes that its arms answered on test patients are made smaller on each side by 0 to 3 voxels,
as long as one is left, and go through the recipe's segmenter again: DSC, and IoU with tight boxes. At 0 that
is what the run itself measured.
"""

import argparse
import dataclasses
import itertools
from pathlib import Path
from statistics import fmean

from evidcore_plugin_medvol_r1.evaluation import SegmentationEvaluation
from over_seeds import answers
from phantom_boxes import AFTER, BEFORE, LONGER, TASK

from evidcore.api import Answer, Answers, Box, EvalResult, Task, paired_interval
from evidcore.cache import cache_folder
from evidcore.recipe import load
from evidcore.recipe.schema import DataUse
from evidcore.runs.assembly import Assembly

ARMS = {"SFT": BEFORE, "as much more SFT": LONGER, "GRPO": AFTER}
MARGINS = (0, 1, 2, 3)


def shrunk(box: Box, margin: int) -> Box:
    """Return a box that is smaller by `margin` voxels on each side; its middle voxel at least is left."""
    y0, y1 = _edges(box.y0, box.y1, margin)
    x0, x1 = _edges(box.x0, box.x1, margin)
    return Box(z=box.z, y0=y0, y1=y1, x0=x0, x1=x1)


def _edges(start: int, stop: int, margin: int) -> tuple[int, int]:
    margin = min(margin, (stop - start - 1) // 2)
    return start + margin, stop - margin


def smaller(answer: Answer, margin: int) -> Answer:
    """Return an answer with smaller boxes."""
    if answer.evidence is None:
        return answer
    boxes = tuple(shrunk(box, margin) for box in answer.evidence.boxes)
    return dataclasses.replace(answer, evidence=dataclasses.replace(answer.evidence, boxes=boxes))


def measure(run: Path) -> list[str]:
    """Return the table of a run."""
    assembly = Assembly(load(run / "resolved.toml"))
    prompts = assembly.prompts(DataUse(dataset="abdomen", task=TASK, split="test"))
    task: Task = assembly.tasks[TASK]
    said = {
        arm: {line["prompt_id"]: line["text"] for line in answers(run, file, TASK)}
        for arm, file in ARMS.items()
    }
    cells = list(itertools.product(ARMS, MARGINS))
    sets = [
        Answers(prompts, [smaller(task.parse(item, said[arm][item.id]), margin) for item in prompts])
        for arm, margin in cells
    ]
    evaluation = SegmentationEvaluation(cache_folder(), segmenter=assembly.services["grower"])
    scored = dict(zip(cells, evaluation.score(sets, task, TASK), strict=True))
    patients = [str(prompt.case.patient) for prompt in prompts]
    lines = [
        f"{run.parents[1].name}: DSC (IoU of boxes with tight ones), {len(prompts)} queries",
        f"{'voxels off each side':22}" + "".join(f"{margin:>16}" for margin in MARGINS),
    ]
    for arm in ARMS:
        lines.append(f"{arm:22}" + "".join(f"{_cell(scored[arm, margin]):>16}" for margin in MARGINS))
    best = max(MARGINS, key=lambda margin: fmean(scored["as much more SFT", margin].values("dsc")))
    for metric in ("dsc", "box_iou"):
        rule = scored["as much more SFT", best].values(metric)
        lift = paired_interval(scored["GRPO", 0].values(metric), rule, patients)
        lines.append(
            f"GRPO minus as much more SFT, {best} voxels off, {metric}: {lift.value:.3f} "
            f"(95 % {lift.low:.3f} to {lift.high:.3f}, patients resampled)"
        )
    return lines


def _cell(scored: EvalResult) -> str:
    dsc, boxes = (fmean(scored.values(metric)) for metric in ("dsc", "box_iou"))
    return f"{dsc:.3f} ({boxes:.3f})"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    parser.add_argument("--keep", type=Path, help="a file to be")
    asked = parser.parse_args()
    lines = ["phantom numbers, test split; the margin is chosen on these very queries, in the rule's favour"]
    for run in asked.runs:
        lines += ["", *measure(run)]
    print("\n".join(lines))
    if asked.keep:
        asked.keep.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
