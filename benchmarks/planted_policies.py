"""How often the policy audit is fooled, and how often it finds what looks: planted policies over seeds.

python benchmarks/planted_policies.py --seeds 200       2 cores, about 20 minutes, no download
python benchmarks/planted_policies.py --seeds 200 --keep docs/results/planted_policies.json

The policies are those of benchmarks/planted.py, which read a world of labels as eyes, headers, histograms or
memory would. No voxel is rendered: these are rates of the audit's reasoning and statistics, not of a model.
"""

import planted
import planted_rates

TRUE_MARGIN = (0.28, 0.1)  # hit and false rates of a looker whose margin is near 0.10


def told(name: str, patients: int, seed: int) -> planted_rates.Told:
    """Return what the audit says of one policy in one world, in a word."""
    training = planted.World(400, seed=1_000_000, confounded=0.8)
    world = planted.World(patients, seed=seed, confounded=0.8, questions=3)
    policy = getattr(planted, name)(world, *(TRUE_MARGIN if name == "Looker" else ()))
    audit = planted.audited(policy, world, training, seed=seed)
    return planted_rates.told_of(audit, "twin")


def main() -> None:
    """Audit, print a line for each policy, and keep them where asked."""
    asked = planted_rates.options(__doc__, seeds=40).parse_args()
    never = [policy.__name__ for policy in planted.NEVER]
    planted_rates.sweep(asked, "planted_policies", never, told, removed="twin")


if __name__ == "__main__":
    main()
