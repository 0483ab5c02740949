"""How often the policy audit is fooled, and how often it finds what looks: planted policies over seeds.

python benchmarks/planted_policies.py --seeds 200       2 cores, about 20 minutes, no download
python benchmarks/planted_policies.py --seeds 200 --keep docs/results/planted_policies.json

The policies are those of tests/audit/planted.py, which read a world of labels as eyes, headers, histograms or
memory would. No voxel is rendered: these are rates of the audit's reasoning and statistics, not of a model.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import sys
from pathlib import Path

import planted_rates

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "audit"))

import planted

TRUE_MARGIN = (0.28, 0.1)  # hit and false rates of a looker whose margin is near 0.10
POWER_AT = (30, 60, 150, 600)  # patients, three questions each


def told(name: str, patients: int, seed: int) -> planted_rates.Told:
    """Return what the audit says of one policy in one world, in a word."""
    training = planted.World(400, seed=1_000_000, confounded=0.8)
    world = planted.World(patients, seed=seed, confounded=0.8, questions=3)
    policy = getattr(planted, name)(world, *(TRUE_MARGIN if name == "Looker" else ()))
    audit = planted.audited(policy, world, training, seed=seed)
    twin = next(rung.above.value for rung in audit.rungs if rung.name == "twin")
    return audit.verdict().split(":")[0], audit.gain.above.value, twin


def main() -> None:
    """Audit, print a line for each policy, and keep them where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--keep", type=Path, metavar="FILE")
    asked = parser.parse_args()
    cells = [(policy.__name__, 150) for policy in planted.NEVER] + [("Looker", count) for count in POWER_AT]
    with concurrent.futures.ProcessPoolExecutor(asked.workers) as pool:

        def audits(policy: str, patients: int) -> list[planted_rates.Told]:
            return list(pool.map(told, [policy] * asked.seeds, [patients] * asked.seeds, range(asked.seeds)))

        command = f"python benchmarks/planted_policies.py --seeds {asked.seeds}"
        planted_rates.sweep(cells, audits, removed="twin", facts={"command": command}, keep=asked.keep)


if __name__ == "__main__":
    main()
