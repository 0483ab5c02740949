"""How often the policy audit is fooled, and how often it finds what looks: planted policies over seeds.

python benchmarks/planted_policies.py --seeds 200       2 cores, about 20 minutes, no download
python benchmarks/planted_policies.py --seeds 200 --keep docs/results/planted_policies.json

The policies are those of tests/audit/planted.py, which read a world of labels as eyes, headers, histograms or
memory would. No voxel is rendered: these are rates of the audit's reasoning and statistics, not of a model.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "audit"))

import planted

TRUE_MARGIN = (0.28, 0.1)  # hit and false rates of a looker whose margin is near 0.10
POWER_AT = (30, 60, 150, 600)  # patients, three questions each


def told(name: str, patients: int, seed: int) -> tuple[str, float, float]:
    """Return what the audit says of one policy in one world, in a word."""
    training = planted.World(400, seed=1_000_000, confounded=0.8)
    world = planted.World(patients, seed=seed, confounded=0.8, questions=3)
    policy = getattr(planted, name)(world, *(TRUE_MARGIN if name == "Looker" else ()))
    audit = planted.audited(policy, world, training, seed=seed)
    twin = next(rung.above.value for rung in audit.rungs if rung.name == "twin")
    return audit.verdict().split(":")[0], audit.gain.above.value, twin


def rates(name: str, patients: int, seeds: int, workers: int) -> dict[str, Any]:
    """Return the shares of verdicts over seeds, and the mean differences."""
    with concurrent.futures.ProcessPoolExecutor(workers) as pool:
        found = list(pool.map(told, [name] * seeds, [patients] * seeds, range(seeds)))
    said = [verdict for verdict, _, _ in found]
    return {
        "policy": name,
        "patients": patients,
        "audits": seeds,
        "told to see": round(sum(one.startswith(planted.SEEN) for one in said) / seeds, 4),  # or in part
        "mean own minus blind": round(sum(gain for _, gain, _ in found) / seeds, 4),
        "mean own minus twin": round(sum(twin for _, _, twin in found) / seeds, 4),
        "verdicts": {verdict: said.count(verdict) for verdict in sorted(set(said))},
    }


def main() -> None:
    """Audit, print a line for each policy, and keep them where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--keep", type=Path, metavar="FILE")
    asked = parser.parse_args()
    rows = []
    cells = [(policy.__name__, 150) for policy in planted.NEVER] + [("Looker", count) for count in POWER_AT]
    for name, patients in cells:
        row = rates(name, patients, asked.seeds, asked.workers)
        rows.append(row)
        print(
            f"{name:14} {patients:4} patients  told to see {100 * row['told to see']:5.1f} %",
            f"own minus blind {100 * row['mean own minus blind']:+5.1f}",
            f"own minus twin {100 * row['mean own minus twin']:+5.1f}",
            sep="  ",
            flush=True,
        )
        if asked.keep:
            kept = {"command": f"python benchmarks/planted_policies.py --seeds {asked.seeds}", "rows": rows}
            asked.keep.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
