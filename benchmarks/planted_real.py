"""Planted policies audited over real CT with planted lesions: values and no rate, since patients are few.

EVID_SHARED_DATA=FOLDER python benchmarks/planted_real.py           2 cores, about 15 minutes

`implant` plants lesions into each scan of FOLDER/ibsi_validation, several copies with others each, and gives
twins without the asked one. Readers are those of rendered_policies.py, fitted on copies of the same patients
with lesions drawn anew. Under 20 patients an audit gives no interval and tells no policy to see.
"""

import argparse
import functools
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import planted
import rendered_policies as rendered
from evidcore_plugin_phantoms.implant.dataset import Implant
from real_scans import real_scans

from evidcore.api import Crop
from evidcore.builtin.choice import Choice
from evidcore.builtin.views import Volume

KINDS = ("hypodense lesion", "stone")


class RealScans(rendered.Scans):
    """Real scans with lesions planted, and twins without."""

    task = Choice(think=False, options_per_question=2)

    def __init__(self, folder: Path, scans: int, copies: int) -> None:
        """Plant into so many scans; what is made lies in `folder`."""
        make = functools.partial(
            Implant, folder / "cache", source=real_scans(folder, folder / "cache", scans), kinds=KINDS,
            no_place="leave-out",
        )  # fmt: skip
        self.start(make(copies=copies, seed=1), "test", list(make(copies=2 * copies, seed=2).cases("test")))


class Eyes(rendered.Reader):
    """Sees what was planted, wherever voxels are in their places."""

    def liking(self, option: str, crop: Crop, options: Sequence[str]) -> float:
        """Return 1 for a finding that is there."""
        scrambled = crop.blank or crop.change == "scrambled"
        return float(not scrambled and option in self.world[crop.volume.path])


def audit(policy: type[planted.Planted], prompts: list[Any]) -> dict[str, Any]:
    """Audit a policy and return its rungs' points."""
    scans = rendered.SCANS
    result = planted.audited(policy(scans.shows), scans, scans, prompts=prompts)
    own = {rung.name: round(100 * rung.above.value, 1) for rung in result.rungs}
    return {
        "policy": policy.__name__,
        "own": round(100 * result.score("own").value, 1),
        "questions": len(prompts),
        "patients": len(set(result.clusters)),
        "own minus": own,
        "verdict": result.verdict(),
    }


def main() -> None:
    """Plant, fit, audit, print, and keep where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--scans", type=int, default=16)
    parser.add_argument("--copies", type=int, default=2)
    parser.add_argument("--keep", type=Path, metavar="FILE")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rendered.SCANS = scans = RealScans(Path(folder), asked.scans, asked.copies)
        scans.fit()
        scans.render()
        prompts = [item for case in scans.pool for item in scans.task.prompts(case, Volume(), 1)]
        rows = [audit(policy, prompts) for policy in (*rendered.NEVER, Eyes)]
    for row in rows:
        rungs = "  ".join(f"{name} {value:+.1f}" for name, value in row["own minus"].items())
        print(f"{row['policy']:14} own {row['own']:5.1f}  own minus: {rungs}\n{'':15}{row['verdict']}")
    if asked.keep:
        kept = {"command": "python benchmarks/planted_real.py", "rows": rows}
        asked.keep.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
