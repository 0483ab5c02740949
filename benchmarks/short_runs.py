"""Run committed recipes whole, each shortened to a few steps a stage, on the device that torch finds.

python benchmarks/short_runs.py [--out FOLDER] [RECIPE …]     one GPU, 4 minutes; 2 cores, 8 minutes

Every stage of each runs: fit, SFT, GRPO with its rewards, tools and segmenters, evaluation and audit. Nothing
is learnt in so few steps: what is shown is that each part runs there, and ends with a verdict. One line a
recipe; exit status 1 if one fails. Runs go on side by side.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
SHORT = {
    "med3d_r1": (ROOT / ".ci" / "short-demo").read_text(encoding="utf-8").split(),
    "medvol_r1": [
        'fitted=""', "dataset.abdomen.train_cases=48", "stage.fit.options.steps=4", "stage.sft.steps=4",
        "stage.longer.sft.steps=2", "stage.grpo.steps=2", "stage.grpo.prompts_per_step=8",
        *(f"stage.{stage}.data=[{{dataset='abdomen',task='answer',split='test',limit=12}}]"
          for stage in ("evaluate[0]", "evaluate[1]", "longer.evaluate", "audit")),
    ],
    "medvr": [
        'fitted=""', "dataset.slices.train_cases=48", "dataset.slices.test_cases=24",
        "dataset.pictures.train_cases=48", "dataset.pictures.validation_cases=24",
        "dataset.pictures.test_cases=24", "dataset.atlas.train_cases=48", "dataset.atlas.validation_cases=24",
        "dataset.atlas.test_cases=24", "stage.fit.options.steps=4", "stage.sft[0].steps=4",
        "stage.sft[1].steps=4", "stage.grpo.steps=2",
    ],
}  # fmt: skip


def main() -> None:
    """Start each, wait for all, say how each ended."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("recipe", nargs="*", choices=[*SHORT, []], help="default: all")
    options.add_argument("--out", type=Path, help="a folder for the runs and what they said")
    given = options.parse_args()
    out = given.out or Path(tempfile.mkdtemp())
    out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    running = {}
    for name in given.recipe or SHORT:
        words = [word for override in SHORT[name] for word in ("--set", override)]
        command = [sys.executable, "-m", "evidcore", "run", str(ROOT / "recipes" / f"{name}.toml")]
        with (out / f"{name}.txt").open("w", encoding="utf-8") as said:
            running[name] = subprocess.Popen(
                [*command, "--out", str(out / name), *words], stdout=said, stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")},
            )  # fmt: skip
    failed = 0
    for name, process in running.items():
        failed |= process.wait() != 0
        ended = "finished" if process.returncode == 0 else f"exit status {process.returncode}"
        print(f"{name}: {ended} after {time.monotonic() - began:.0f} s; {out / name}.txt")
    sys.exit(failed)


if __name__ == "__main__":
    main()
