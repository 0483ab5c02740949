"""What do failures of a reader do to a run? E-MRL with a reader that leaves one question in 100 unanswered.

OMP_NUM_THREADS=1 python benchmarks/failing_reader.py          some 15 minutes of one CPU core

Runs recipes/emrl.toml from what ships fitted, with `slice-reader` made to fail at random, and prints the
figures after GRPO beside those of the sound reader over the seeds of docs/results/ablations/emrl. Answers
whose slice, or all of whose controls, got no answer are unscored: they earn what the rest of their group
earns on average.
"""

import argparse
import json
import random
from collections.abc import Sequence
from pathlib import Path

from evidcore_plugin_emrl.slice_reader import SliceReader

from evidcore.cli import main as evid
from evidcore.contracts import ImageQuestion

ROOT = Path(__file__).parents[1]
METRICS = ("evidence_hit_rate", "grounded_accuracy", "hallucination_rate", "omission_rate")


class Failing:
    """Stands in for `SliceReader.__call__`, and counts."""

    def __init__(self, share: float) -> None:
        self.share, self.asked, self.failed = share, 0, 0
        self._sound, self._drawn = SliceReader.__call__, random.Random("failing reader")

    def __call__(self, reader: SliceReader, questions: Sequence[ImageQuestion]) -> Sequence[str | None]:
        """Answer, but for a share of the questions."""
        said = self._sound(reader, questions)
        fails = [self._drawn.random() < self.share for _ in questions]
        self.asked += len(questions)
        self.failed += sum(fails)
        return [None if fail else answer for fail, answer in zip(fails, said, strict=True)]


def main() -> None:
    """Run, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--share", type=float, default=0.01)
    parser.add_argument("--out", type=Path, default=Path("runs/failing-reader"))
    parser.add_argument("--set", action="append", default=[], help="as evid run's")
    asked = parser.parse_args()
    failing = Failing(asked.share)
    SliceReader.__call__ = lambda self, questions: failing(self, questions)  # type: ignore[method-assign]
    changes = [
        "arms=false",
        'stage.audit.data=[{dataset="abdomen", task="report", split="test", limit=2}]',
        *asked.set,
    ]
    command = ["run", str(ROOT / "recipes" / "emrl.toml"), "--out", str(asked.out)]
    evid.main([*command, *(word for item in changes for word in ("--set", item))], standalone_mode=False)
    print(f"{failing.failed} of {failing.asked} questions were not answered")
    (run,) = sorted(asked.out.glob("emrl/*/results/07-evaluate.json"))[-1:]
    measured = {item["metric"]: item for item in json.loads(run.read_text(encoding="utf-8"))["rows"]}
    kept = json.loads((ROOT / "docs/results/ablations/emrl/ablation.json").read_text(encoding="utf-8"))
    sound = {
        row["metric"]: [100 * value for value in row["by_seed"].values()]
        for row in kept["rows"]
        if row["arm"] == "slice" and row["stage"] == "07-evaluate"
    }
    for name in METRICS:
        own, low, high = 100 * measured[name]["value"], min(sound[name]), max(sound[name])
        where = "within" if low <= own <= high else "outside"
        print(f"{name:20}{own:6.1f} %, {where} {low:.1f} to {high:.1f} of {len(sound[name])} seeds")


if __name__ == "__main__":
    main()
