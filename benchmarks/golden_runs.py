"""Run the offline recipes in a shortened form, and compare results, answers and rollouts with those kept.

    python benchmarks/golden_runs.py              # compare; exits with 1 where anything differs
    python benchmarks/golden_runs.py --write      # keep what comes out
    python benchmarks/golden_runs.py --only emrl --folder FOLDER   # runs stay in FOLDER, to look at

A refactoring must leave every figure, answer and reward as it was, to the last bit. Bits hang on the
processor's instructions and on versions, so a kept file says which it was made with, and it is compared
only where both are the same. One seed, one thread, a few steps a stage; nothing that ships fitted is used.
"""

import argparse
import hashlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "tests" / "golden" / "shortened"
SHORT = {
    "med3d_r1": [
        "dataset.chest.train_cases=48",
        "dataset.chest.validation_cases=16",
        "dataset.chest.test_cases=24",
        "dataset.chest.questions_per_finding=2",
        "stage.fit[0].options.steps=4",
        "stage.fit[1].options.steps=4",
        "stage.sft.steps=4",
        "stage.longer.sft.steps=2",
        "stage.grpo.steps=2",
        "stage.grpo.prompts_per_step=4",
        "stage.grpo.answers_per_prompt=4",
        "stage.blind.sft.steps=4",
        "stage.blind.grpo.steps=2",
        "stage.blind.grpo.prompts_per_step=4",
        "stage.blind.grpo.answers_per_prompt=4",
    ],
    "medvol_r1": [
        "dataset.abdomen.train_cases=40",
        "dataset.abdomen.validation_cases=8",
        "dataset.abdomen.test_cases=12",
        "stage.fit.options.steps=4",
        "stage.sft.steps=4",
        "stage.longer.sft.steps=2",
        "stage.grpo.steps=2",
        "stage.grpo.prompts_per_step=4",
        "stage.grpo.answers_per_prompt=4",
    ],
    "emrl": [
        "dataset.abdomen.train_cases=40",
        "dataset.abdomen.validation_cases=8",
        "dataset.abdomen.test_cases=12",
        "dataset.readers.train_cases=40",
        "dataset.readers.validation_cases=24",
        "stage.fit[0].options.steps=4",
        "stage.fit[1].options.steps=4",
        "stage.sft[0].steps=3",
        "stage.sft[0].rows_per_step=8",
        "stage.sft[1].steps=3",
        "stage.grpo.steps=2",
        "stage.grpo.prompts_per_step=4",
        "stage.grpo.answers_per_prompt=4",
    ],
    "medvr": [
        "dataset.slices.train_cases=40",
        "dataset.slices.test_cases=12",
        "dataset.pictures.train_cases=60",
        "dataset.pictures.validation_cases=8",
        "dataset.pictures.test_cases=8",
        "dataset.atlas.train_cases=60",
        "dataset.atlas.validation_cases=8",
        "dataset.atlas.test_cases=8",
        "stage.fit.options.steps=4",
        "stage.sft[0].steps=3",
        "stage.sft[1].steps=3",
        "stage.grpo.steps=2",
        "stage.grpo.prompts_per_step=4",
        "stage.grpo.answers_per_prompt=4",
    ],
}
VERSIONS = ("torch", "transformers", "trl", "numpy", "scipy", "monai")
NO_RESULT = ("took_s", "inputs", "fitted_before")  # of a stage's result: hang on the machine and on the code


def main() -> int:
    """Run, then write or compare."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--only", action="append", choices=sorted(SHORT))
    parser.add_argument("--folder", type=Path)
    chosen = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as scratch:
        for recipe in chosen.only or SHORT:
            result = golden(recipe, (chosen.folder or Path(scratch)) / recipe)
            file = KEPT / f"{recipe}.json"
            if chosen.write:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
                print(f"{recipe}: written")
                continue
            differences = compared(json.loads(file.read_text(encoding="utf-8")), result)
            failed |= bool(differences)
            print("\n  ".join([f"{recipe}: {'differs' if differences else 'equal'}", *differences[:20]]))
    return int(failed)


def golden(recipe: str, out: Path) -> dict[str, object]:
    """Run a recipe in its shortened form and return what is kept of it."""
    words = [
        sys.executable,
        "-m",
        "evidcore",
        "run",
        f"recipes/{recipe}.toml",
        "--out",
        str(out),
        "--json",
        "--fresh",
    ]
    for override in ['fitted=""', *SHORT[recipe]]:
        words += ["--set", override]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{recipe}: {done.stderr[-4000:]}")
    return {"made_with": made_with(), "stages": kept_of(Path(json.loads(done.stdout)["run"]))}


def kept_of(run: Path) -> dict[str, object]:
    """Return what a run's stages gave, under names without their number in the recipe: "evaluate[1]"."""
    files = sorted((run / "results").glob("*.json"))
    labels = [file.stem.partition("-")[2] or file.stem for file in files]
    names = {
        file.stem: f"{label}[{labels[:place].count(label)}]"
        for place, (file, label) in enumerate(zip(files, labels, strict=True))
    }
    results = {}
    for old, new in names.items():
        result = json.loads(renamed((run / "results" / f"{old}.json").read_text(encoding="utf-8"), names))
        kept = {key: value for key, value in result.items() if key not in NO_RESULT}
        figures = kept.get("figures") or {}
        kept["figures"] = {key: value for key, value in figures.items() if not key.startswith("seconds")}
        lines = {kind: hashed(run / kind / f"{old}.jsonl", names) for kind in ("answers", "rollouts")}
        results[new] = {"result": kept, **lines}
    return results


def renamed(text: str, names: dict[str, str]) -> str:
    """Return a text with new names of stages, and images without their file in the cache."""
    result = "|".join(sorted(map(re.escape, names), key=len, reverse=True))
    text = re.sub(r'"/[^"#]*#', '"image#', text)  # a line says of which case
    return re.sub(result, lambda name: names[name[0]], text)


def hashed(file: Path, names: dict[str, str]) -> dict[str, object]:
    """Return how many lines a file has, the hash of all, and the first three, to tell what differs."""
    text = renamed(file.read_text(encoding="utf-8"), names) if file.is_file() else ""
    texts = text.splitlines()
    return {
        "lines": len(texts),
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
        "first": [json.loads(line) for line in texts[:3]],
    }


def made_with() -> dict[str, str]:
    """Return what bits hang on beside the code."""
    import torch

    versions = {name: importlib.metadata.version(name) for name in VERSIONS}
    return {"instructions": torch.backends.cpu.get_cpu_capability(), **versions}


def compared(kept: dict, found: dict) -> list[str]:
    """Return what differs, a line each."""
    if kept["made_with"] != found["made_with"]:
        return [f"not compared: kept with {kept['made_with']}, here are {found['made_with']}"]
    return list(differences(kept["stages"], found["stages"], ""))


def differences(kept: object, found: object, where: str) -> Iterator[str]:
    """Yield the places at which two trees differ."""
    if isinstance(kept, dict) and isinstance(found, dict):
        for key in dict.fromkeys([*kept, *found]):
            yield from differences(kept.get(key), found.get(key), f"{where}/{key}")
    elif isinstance(kept, list) and isinstance(found, list) and len(kept) == len(found):
        for index, both in enumerate(zip(kept, found, strict=True)):
            yield from differences(*both, f"{where}/{index}")
    elif kept != found:
        yield f"{where}: {kept!r:.200} became {found!r:.200}"


if __name__ == "__main__":
    sys.exit(main())
