"""Train the two models that ship with this package, anew.

OMP_NUM_THREADS=1 python plugins/evidcore-plugin-tour/make_models.py       1 core, 12 minutes, no download

It runs train.toml and writes the models of two of its stages, with weights in float16, beside a record of the
recipe, the data and the weights.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from evidcore_plugin_tour.shipped import MADE, MODELS, SCAN, TRAINING, WORDS
from safetensors.torch import load_file, save_file

from evidcore.runs.folder import sha256

WEIGHTS = "model.safetensors"
STAGES = {WORDS.name: "03-sft-words", SCAN.name: "04-sft"}


def main() -> None:
    """Train, and write both models with their record."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "evidcore", "run", str(TRAINING), "--out", folder, "--json"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        write_models(Path(json.loads(done.stdout)["run"]))


def write_models(run: Path) -> None:
    """Write the models of a run of the recipe."""
    shutil.rmtree(MODELS, ignore_errors=True)
    models = {}
    for name, stage in STAGES.items():
        checkpoint, target = (run / "checkpoints" / stage).resolve(), MODELS / name
        shutil.copytree(checkpoint, target, ignore=shutil.ignore_patterns("steps"))
        weights = {key: value.half() for key, value in load_file(target / WEIGHTS).items()}
        save_file(weights, target / WEIGHTS, metadata={"format": "pt"})
        (target / WEIGHTS).chmod(0o644)
        inputs = json.loads((checkpoint.parent / "inputs.json").read_text(encoding="utf-8"))
        models[name] = {
            "stage": inputs["stage"],
            "dataset": {name: table["fingerprint"] for name, table in inputs["dataset"].items()},
            "weights": sha256(target / WEIGHTS),
        }
    made = {"recipe": sha256(run / "recipe.toml"), "models": models}
    MADE.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
