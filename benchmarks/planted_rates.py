"""How often audits of planted policies say "seen", cell by cell: a cell that is kept is not run again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

SEEN = "What is asked is seen"  # or in part
Told = tuple[str, float, float]  # the verdict in a word, own minus blind, own minus what was removed


def sweep(
    cells: Iterable[tuple[str, int]],
    audits: Callable[[str, int], Sequence[Told]],
    *,
    removed: str,
    facts: Mapping[str, Any],
    keep: Path | None,
) -> None:
    """Print the rates of each cell, and keep them.

    Args:
        cells: a policy and a number of patients.
        audits: audits a cell under every seed.
        removed: what the second difference is called.
        facts: of the whole, kept beside the rows; under other facts every cell is run anew.
        keep: the file.
    """
    rows: list[dict[str, Any]] = []
    if keep is not None and keep.exists():
        held = json.loads(keep.read_text(encoding="utf-8"))
        rows = held["rows"] if {key: held.get(key) for key in facts} == dict(facts) else []
    for policy, patients in cells:
        row = next((row for row in rows if (row["policy"], row["patients"]) == (policy, patients)), None)
        if row is None:
            row = {"policy": policy, "patients": patients, **_rates(audits(policy, patients), removed)}
            rows.append(row)
        print(
            f"{policy:14} {patients:4} patients  told to see {100 * row['told to see']:5.1f} %",
            *(f"own minus {name} {100 * row[f'mean own minus {name}']:+5.1f}" for name in ("blind", removed)),
            sep="  ",
            flush=True,
        )
        if keep is not None:
            keep.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n", encoding="utf-8")


def _rates(found: Sequence[Told], removed: str) -> dict[str, Any]:
    said = [verdict for verdict, _, _ in found]
    return {
        "audits": len(found),
        "told to see": round(sum(one.startswith(SEEN) for one in said) / len(found), 4),
        "mean own minus blind": round(sum(gain for _, gain, _ in found) / len(found), 4),
        f"mean own minus {removed}": round(sum(fell for _, _, fell in found) / len(found), 4),
        "verdicts": {verdict: said.count(verdict) for verdict in sorted(set(said))},
    }
