"""How often audits of planted policies say "seen", cell by cell: a cell that is kept is not run again."""

import argparse
import json
import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from evidcore.audit.policy import PolicyAuditResult

SEEN = "What is asked is seen"  # or in part
PATIENTS = 150  # of an audit
POWER_AT = (30, 60, 150, 600)  # patients
LOOKER = "Looker"
Told = tuple[str, float, float]  # the verdict in a word, own minus blind, own minus what was removed


def told_of(audit: PolicyAuditResult, removed: str) -> Told:
    """Return what an audit says, and own minus the rung `removed`."""
    fell = next(rung.above.value for rung in audit.rungs if rung.name == removed)
    return audit.verdict().split(":")[0], 0.0 if audit.gain is None else audit.gain.above.value, fell


def options(about: str | None, *, seeds: int = 20) -> argparse.ArgumentParser:
    """Return a parser of what every sweep may be told."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=seeds)
    parser.add_argument("--only", action="append", metavar="POLICY")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--keep", type=Path, metavar="FILE")
    return parser


def rendered_options(about: str | None, *, pool: int, training: int, share: float) -> argparse.ArgumentParser:
    """Return a parser of what a sweep over one rendered pool may be told."""
    parser = options(about)
    parser.add_argument("--pool", type=int, default=pool, help="patients that are rendered")
    parser.add_argument("--training", type=int, default=training)
    parser.add_argument(
        "--share", type=float, default=share, help="of what is asked that the looker looks at"
    )
    parser.add_argument("--cache", type=Path, help="keeps what is rendered")
    return parser


def sweep(
    asked: argparse.Namespace,
    script: str,
    never: Sequence[str],
    told: Callable[[str, int, int], Told],
    *,
    removed: str,
    most: int | None = None,
    **facts: Any,
) -> None:
    """Audit every policy under every seed, print its rates, and keep them.

    Args:
        asked: what the command was told.
        script: its name.
        never: policies that never look.
        told: audits a policy on so many patients under a seed; called in forks of this process.
        removed: the rung of the second difference.
        most: patients that there are.
        facts: of the whole, kept beside the rows; under other facts every cell is run anew.
    """
    facts = {"command": f"python benchmarks/{script}.py --seeds {asked.seeds}", **facts}
    most = most or max(POWER_AT)
    cells = [(name, min(PATIENTS, most)) for name in never]
    cells += [(LOOKER, size) for size in POWER_AT if size <= most]
    rows, lines = _kept_rows(asked.keep, facts), [f"phantom numbers; {asked.seeds} audits a line"]
    with multiprocessing.get_context("fork").Pool(asked.workers) as pool:
        for policy, patients in cells:
            if asked.only and policy not in asked.only:
                continue
            row = next((row for row in rows if (row["policy"], row["patients"]) == (policy, patients)), None)
            if row is None:
                some = [(policy, patients, seed) for seed in range(asked.seeds)]
                result = pool.starmap(told, some, chunksize=4)
                row = {"policy": policy, "patients": patients, **_rates(result, removed)}
                rows.append(row)
            lines.append(_line(row, removed))
            print(lines[-1], flush=True)
            if asked.keep is not None:
                asked.keep.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n", encoding="utf-8")
                asked.keep.with_suffix(".txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _line(row: Mapping[str, Any], removed: str) -> str:
    ends = (f"own minus {name} {100 * row[f'mean own minus {name}']:+5.1f}" for name in ("blind", removed))
    seen = f"told to see {100 * row['told to see']:5.1f} %"
    return "  ".join([f"{row['policy']:14} {row['patients']:4} patients", seen, *ends])


def _kept_rows(keep: Path | None, facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of an earlier sweep under the same facts."""
    if keep is None or not keep.exists():
        return []
    held = json.loads(keep.read_text(encoding="utf-8"))
    return list(held["rows"]) if {key: held.get(key) for key in facts} == dict(facts) else []


def _rates(found: Sequence[Told], removed: str) -> dict[str, Any]:
    said = [verdict for verdict, _, _ in found]
    return {
        "audits": len(found),
        "told to see": round(sum(item.startswith(SEEN) for item in said) / len(found), 4),
        "mean own minus blind": round(sum(gain for _, gain, _ in found) / len(found), 4),
        f"mean own minus {removed}": round(sum(fell for _, _, fell in found) / len(found), 4),
        "verdicts": {verdict: said.count(verdict) for verdict in sorted(set(said))},
    }
