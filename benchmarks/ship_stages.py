"""Fill the folder that a recipe's key `fitted` names, from a finished run of it.

python benchmarks/ship_stages.py RUN recipes/fitted/med3d_r1
python benchmarks/ship_stages.py RUN recipes/fitted/medvol_r1 --also 02-sft 04-sft-longer
    ships these trained stages too

Shipped are fitted parts and blind arms. What starts from SFT is trained by whoever runs the recipe, or an arm
would have begun elsewhere than what it is held against: an arm may ship where the SFT that it starts from
ships too. The run must have a store of its own (`--out` an empty folder), for all that lies there is looked
at.
"""

import argparse
import json
import shutil
import sys
from pathlib import Path

from evidcore.recipe import load
from evidcore.runs.folder import open_run
from evidcore.runs.inputs import INPUTS


def ship(stored: Path, folder: Path) -> None:
    """Copy a finished stage into a folder that a recipe names: inputs, result, curve and weights.

    Args:
        stored: the stage's folder in a store.
        folder: gets a folder of the same name.
    """
    place = folder / stored.name
    place.mkdir(parents=True)
    for name in (INPUTS, "result.json", "metrics.jsonl"):
        shutil.copyfile(stored / name, place / name)
    shutil.copytree(stored / "checkpoint", place / "checkpoint")


def main() -> None:
    """Copy the stages and print their sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--also", nargs="+", default=[], metavar="STAGE", help="trained stages, by their names"
    )
    asked = parser.parse_args()
    run = open_run(asked.run)
    recipe = load(run.path / "resolved.toml")
    names = recipe.stage_names
    if unknown := sorted({*asked.also} - {*names}):
        sys.exit(f"The run has no stage {', '.join(unknown)}. It has: {', '.join(names)}.")
    trained = {
        json.loads((run.path / "results" / f"{name}.json").read_text())["inputs"]
        for name, stage in zip(names, recipe.stages, strict=True)
        if stage.output == "model" and name not in asked.also
    }
    if asked.folder.exists():
        sys.exit(f"{asked.folder} is there already. Remove it first.")
    for stored in sorted(path.parent for path in run.store.glob("*/checkpoint")):
        if stored.name not in trained:
            ship(stored, asked.folder)
            size = sum(
                file.stat().st_size for file in (asked.folder / stored.name).rglob("*") if file.is_file()
            )
            name = json.loads((stored / "result.json").read_text())["stage"]
            print(f"{name}: {size / 1e6:.1f} MB in {asked.folder / stored.name}")


if __name__ == "__main__":
    main()
