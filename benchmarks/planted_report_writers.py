"""How often the audit of reports is fooled, finding by finding, and how often it finds what looks.

python benchmarks/planted_report_writers.py --seeds 200        2 cores, about 90 minutes, no download
python benchmarks/planted_report_writers.py --seeds 200 --keep docs/results/planted_reports.json

The writers are those of benchmarks/planted_reports.py: one report for all, the words of the prompt,
findings as often as they are there, a cue that comes with them, the words where pixels are not odd, and
test scans known by heart, with edits noticed or not. Told to see is an audit that tells any finding to be
seen, in part or whole. The looker sees 12 of 18 findings; told to see is then an audit that names at least
10 of these and no other. No voxel is rendered: these are rates of the audit's reasoning and statistics, not
of a model.
"""

import planted_rates
import planted_reports as planted

LEAST = 10  # of the findings that the looker sees


def told(name: str, patients: int, seed: int) -> planted_rates.Told:
    """Return what the audit says of one writer in one world, in a word."""
    result, kinds = planted.audited(getattr(planted, name), seed, patients)
    word, gain, fell = planted_rates.told_of(result, "twin")
    seen = {finding for finding, kind in kinds.items() if kind.startswith("seen")}
    if name == planted_rates.LOOKER:
        return (planted_rates.SEEN if seen <= planted.SEEN and len(seen) >= LEAST else word), gain, fell
    return (planted_rates.SEEN if seen else word), gain, fell


def main() -> None:
    """Audit, print a line for each writer, and keep them where asked."""
    asked = planted_rates.options(__doc__, seeds=40).parse_args()
    never = [policy.__name__ for policy in planted.NEVER]
    planted_rates.sweep(
        asked, "planted_report_writers", never, told, removed="twin", most=planted_rates.PATIENTS
    )


if __name__ == "__main__":
    main()
