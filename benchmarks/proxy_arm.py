"""Is a policy that was trained to a proxy told to see what it is asked? A planted cheat, and its twin.

OMP_NUM_THREADS=1 python benchmarks/proxy_arm.py       1 core, about 20 minutes, no download
OMP_NUM_THREADS=1 python benchmarks/proxy_arm.py --keep docs/results/proxy_arm.json

Two policies are trained alike, by the first stages of recipes/med3d_r1.toml in short: fitted language model,
fitted encoder, fine-tuned bridge. The patients of the first are confounded: findings come together by a type
of patient that no text tells, and the height of the scanner's table tells the type. The table of the second
one's patients tells nothing, since any finding comes with any other. Both are audited on new patients of both
kinds, with twins and with a trained blind arm. Numbers are phantom numbers, in percent.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

WORLDS = ("confounded", "broken")
RECIPE = """\
schema = 1
name = "proxy_arm"
seed = 17

[dataset.confounded]
use = "phantom-chest"
train_cases = 800
validation_cases = 60
test_cases = 120
questions_per_finding = 15
table_cue = 1.0
company = 1.0

[dataset.broken]
use = "phantom-chest"
train_cases = 800
validation_cases = 60
test_cases = 120
questions_per_finding = 15
table_cue = 1.0

[dataset.new-confounded]
use = "phantom-chest"
seed = 18
train_cases = 200
validation_cases = 0
test_cases = 200
questions_per_finding = 22
table_cue = 1.0
company = 1.0

[dataset.new-broken]
use = "phantom-chest"
seed = 18
train_cases = 200
validation_cases = 0
test_cases = 200
questions_per_finding = 22
table_cue = 1.0

[dataset.texts]                  # the language model learns of no confounder
use = "phantom-chest"

[task.choice]
use = "choice"

[task.choice-direct]
use = "choice"
think = false

[task.report]
use = "report"

[model]
language = { use = "tiny" }
view = { use = "volume" }
encoder = { use = "vit3d" }
bridge = { use = "residual-alignment" }

[[stage]]
kind = "fit"
component = "model.language"
data = [
  { dataset = "texts", task = "choice", sampling_weight = 0.4 },
  { dataset = "texts", task = "choice-direct", sampling_weight = 0.25 },
  { dataset = "texts", task = "report", sampling_weight = 0.35 },
]
options = { steps = 700, emphasis = { " present" = 6, " absent" = 6, A = 6, B = 6, C = 6, D = 6 } }

[[stage]]
kind = "fit"
component = "model.encoder"
data = [{ dataset = "TRAINED" }]
options = { steps = 300 }

[[stage]]
kind = "sft"
arm = "blind"
volumes = "blank"
train = ["bridge"]
data = [
  { dataset = "TRAINED", task = "report", sampling_weight = 0.4 },
  { dataset = "TRAINED", task = "choice", sampling_weight = 0.6 },
]
steps = 120
rows_per_step = 32
learning_rate = 3e-2
optimizer = "muon"
pixel_check_every_steps = 0

[[stage]]
kind = "sft"
train = ["bridge"]
data = [
  { dataset = "TRAINED", task = "report", sampling_weight = 0.4 },
  { dataset = "TRAINED", task = "choice", sampling_weight = 0.6 },
]
steps = 120
rows_per_step = 32
learning_rate = 3e-2
optimizer = "muon"
pixel_check_every_steps = 0
"""
AUDIT = """
[[stage]]
kind = "audit"
blind_arm = "blind"
conditions = [
  { use = "blank" }, { use = "scrambled" }, { use = "other-patient", repeats = 1 }, { use = "perturbed" },
  { use = "twin" }, { use = "sham" },
]
data = [{ dataset = "new-TESTED", task = "choice", split = "test" }]
max_new_tokens = 32
"""
TASK = "choice"


def audits(trained: str, root: Path) -> list[dict[str, Any]]:
    """Train on one kind of patients, and return what the audit says on each kind."""
    recipe = root / f"{trained}.toml"
    recipe.parent.mkdir(parents=True, exist_ok=True)
    text = RECIPE + "".join(AUDIT.replace("TESTED", tested) for tested in WORLDS)
    recipe.write_text(text.replace("TRAINED", trained), encoding="utf-8")
    command = [sys.executable, "-m", "evidcore", "run", str(recipe), "--out", str(root / "runs"), "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    folder = Path(json.loads(done.stdout)["run"])
    return [
        {
            "trained on": trained,
            "audited on": tested,
            **figures(folder / "results" / f"{place:02d}-audit.json"),
        }
        for place, tested in enumerate(WORLDS, start=4)
    ]


def figures(result: Path) -> dict[str, Any]:
    """Return the figures of an audit."""
    results = json.loads(result.read_text(encoding="utf-8"))
    rows = [row for row in results["rows"] if row["value"] is not None]
    shown = {row["condition"]: row for row in rows if row.get("condition") and row.get("headline")}
    apart = {row["metric"]: row for row in rows if row["name"] == TASK and "/" not in row["metric"]}
    gain, twin = apart["own_minus_blind"], apart["own_minus_twin"]
    return {
        "questions": shown["own"]["questions"],
        "patients": shown["own"]["patients"],
        **{condition: percent(row["value"]) for condition, row in shown.items()},
        "best that does not look": gain["against"],
        "own minus it": ends(gain),
        "own minus twin": ends(twin),
        "questions with a twin": twin["questions"],
        "own minus blind arm": ends(apart["own_minus_blind_arm"]),
        "own minus another patient's": ends(apart["grounding_margin"]),
        "verdict": results["verdict"][TASK],
    }


def percent(value: float) -> float:
    """Return a share in percent."""
    return round(100 * value, 1)


def ends(row: Mapping[str, Any]) -> list[float]:
    """Return a difference with its interval, in points; the same thrice where every draw gives the same."""
    return [percent(row["value"] if row[key] is None else row[key]) for key in ("value", "low", "high")]


def line(found: Mapping[str, Any]) -> str:
    """Return a line of the table."""
    named = [f"{value:+.1f} ({low:+.1f} to {high:+.1f})" for value, low, high in (
        found["own minus it"], found["own minus blind arm"], found["own minus twin"])]  # fmt: skip
    who = [found["trained on"], found["audited on"], f"{found['own']:.1f}"]
    return " | ".join(["", *who, *named, found["verdict"].split(":")[0], ""]).strip()


def main() -> None:
    """Train, audit, print the table, and keep it where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/proxy_arm"))
    parser.add_argument("--keep", type=Path, metavar="FILE")
    asked = parser.parse_args()
    rows = [row for trained in WORLDS for row in audits(trained, asked.out)]
    head = (
        "trained on | audited on | own | over the best that does not look | over the blind arm | over twins"
    )
    print("phantom numbers, in percent and points", f"| {head} | verdict |", "|" + "---|" * 7, sep="\n")
    print(*map(line, rows), sep="\n")
    if asked.keep:
        kept = {"command": "OMP_NUM_THREADS=1 python benchmarks/proxy_arm.py", "phantom": True, "rows": rows}
        asked.keep.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
