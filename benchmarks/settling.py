"""Does a slice that contradicts the report still pay? The settling test of the reward cross-view.

python benchmarks/slice_reader.py                   fits the reader, once: about 12 minutes on a CPU core
OMP_NUM_THREADS=1 python benchmarks/settling.py     about 4 minutes
python benchmarks/settling.py --second runs/slice-reader/1018 --second-channels 24 48 96

Draws phantom-abdomen with another seed than the reader was fitted on, and pays the gold answers of its test
patients under each condition of `evid audit reward`, with every control, agreement and binding.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from pathlib import Path

import torch
from evidcore_plugin_emrl.cross_view import CrossView
from evidcore_plugin_emrl.report_evidence import ReportEvidence
from evidcore_plugin_emrl.settled import CELLS
from evidcore_plugin_emrl.settling_conditions import CONDITIONS
from evidcore_plugin_emrl.slice_reader import SliceReader
from evidcore_plugin_phantoms.abdomen.dataset import PhantomAbdomen

from evidcore.builtin.views import Slices
from evidcore.case import Rollout
from evidcore.volume import cache_root


def main() -> None:
    """Pay and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=2017, help="of the population")
    parser.add_argument("--patients", type=int, default=400)
    parser.add_argument("--fitted", type=Path, default=Path("runs/slice-reader/1017"))
    parser.add_argument("--second", type=Path, help="a folder that another fit wrote: for a kappa")
    parser.add_argument("--second-channels", type=int, nargs="+", default=[24, 48, 96])
    parser.add_argument("--keep", type=Path, help="a file to be")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    start = time.perf_counter()
    dataset = PhantomAbdomen(
        cache_root(),
        train_cases=0,
        validation_cases=0,
        test_cases=asked.patients,
        seed=asked.seed,
        size_zyx=(24, 96, 128),
        scan_shift_mm=60.0,
    )
    cases = list(dataset.cases("test"))
    task, gold = ReportEvidence(cache_root()), []
    for group, prompt in enumerate(
        prompt for case in cases for prompt in task.prompts(case, Slices(slices=24), 0)
    ):
        text, _ = task.gold(prompt)
        gold.append(Rollout(prompt=prompt, group=group, text=text, answer=task.parse(prompt, text)))
    reader = SliceReader()
    reader.load(asked.fitted)
    second = None
    if asked.second:
        second = SliceReader(channels=tuple(asked.second_channels))
        second.load(asked.second)
    lines = [
        f"phantom numbers: phantom-abdomen, seed {asked.seed}, {len(cases)} patients, "
        f"{sum(bool(case.present()) for case in cases)} with a finding; slice-reader of {asked.fitted}"
    ]
    lines += [f"  {name:15}{says}" for name, says in CONDITIONS.items()]
    reward = CrossView(lambda: cases, cache_root(), reader=reader, second_reader=second)
    settled = reward.settled(gold)
    if settled is None:
        raise SystemExit("no patient has a slice that contradicts its report: give more patients")
    lines += ["", *settled.table(), "", "outcomes"]
    for own in CELLS:
        if own.control == "others" and not own.mask_gate:
            lines += ["", str(own)]
            checks = dataclasses.replace(settled, own=own).checks()
            lines += [f"  {one.outcome:6}{one.check:26}{one.says}" for one in checks]
    print("\n".join(lines))
    print(f"{(time.perf_counter() - start) / 60:.1f} minutes")
    if asked.keep:
        asked.keep.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
