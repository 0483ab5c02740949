"""Does a change keep what runs give? Shortened recipes, one thread: their answers, rollouts and rows.

    python benchmarks/yardstick.py --keep before.json            # at the commit to compare with
    python benchmarks/yardstick.py --compare before.json         # at another one, on the same machine

Every recipe that needs no download runs in a shortened form: the two demonstrations (one of them with its
controls), `real_ct` on a folder of NIfTI files that this script makes, and, with `--ablations`, every
ablation under one seed. What is kept of a run: a hash of each answer and of each group of rollouts, and every
row of results. Seconds, paths and hashes of inputs are left out. Intervals are compared apart from values.
Another machine may give other bits, so a kept file is good for the machine that wrote it.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]
DEMO = (
    "dataset.chest.train_cases=96", "dataset.chest.validation_cases=24", "dataset.chest.test_cases=40",
    "dataset.chest.questions_per_finding=2", "stage.fit[0].options.steps=20",
    "stage.fit[1].options.steps=150", "stage.sft.steps=10", "stage.grpo.steps=4",
    "stage.grpo.prompts_per_step=6", "stage.blind.sft.steps=10", "stage.blind.grpo.steps=4",
    "stage.blind.grpo.prompts_per_step=6",
)  # fmt: skip
MEDVOL = (
    "dataset.abdomen.train_cases=120", "dataset.abdomen.validation_cases=10", "dataset.abdomen.test_cases=30",
    "stage.fit.options.steps=20", "stage.sft[0].steps=80", "stage.sft[1].steps=20",
    "stage.audit.data[0].limit=22", "stage.grpo.steps=3", "stage.grpo.prompts_per_step=8",
)  # fmt: skip
SWEEP = {  # an ablation's overrides are put after these
    "med3d_r1": (
        "dataset.chest.train_cases=48", "dataset.chest.validation_cases=12", "dataset.chest.test_cases=24",
        "dataset.chest.questions_per_finding=1", "stage.fit[1].options.steps=60", "stage.sft.steps=3",
    ),
    "medvol_r1": (
        "dataset.abdomen.train_cases=60", "dataset.abdomen.validation_cases=10",
        "dataset.abdomen.test_cases=22", "stage.fit.options.steps=5", "stage.sft[0].steps=10",
    ),
}  # fmt: skip
_LEFT_OUT = ("time_s", "inputs", "seconds", "seconds_per_step")


def main() -> int:
    """Run, and keep or compare; return 1 where something came out otherwise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--keep", type=Path, metavar="FILE", help="write what came out")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="say what differs from a kept file")
    parser.add_argument("--only", action="append", metavar="NAME", help="only these recipes or ablations")
    parser.add_argument("--ablations", action="store_true", help="the ablations too (half an hour)")
    asked = parser.parse_args()
    sweeps = sorted(path.stem for path in (REPOSITORY / "recipes" / "ablations").glob("*.toml"))
    names = ["med3d_r1", "medvol_r1", "real_ct", *(sweeps if asked.ablations else ())]
    found: dict[str, Any] = {}
    known = json.loads(asked.keep.read_text(encoding="utf-8")) if asked.keep and asked.keep.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        for name in asked.only or names:
            print(f"{name} …", flush=True)
            found[name] = kept(
                run_ablation(name, Path(folder)) if name in sweeps else run(name, Path(folder))
            )
            if asked.keep:  # after each, so that a killed one leaves what it has
                asked.keep.write_text(json.dumps(known | found, indent=1) + "\n", encoding="utf-8")
    if asked.compare is None:
        return 0
    before = json.loads(asked.compare.read_text(encoding="utf-8"))
    lines = [line for name in found for line in differences(before[name], found[name], name)]
    added = collections.Counter(
        line.rpartition("/")[2] for line in lines if line.endswith(": only after") and "/rows/" in line
    )
    lines = [line for line in lines if line.rpartition("/")[2] not in added]
    lines += [f"{count} rows: {column}" for column, count in added.items()]
    print("\n".join(lines) if lines else f"unchanged: {', '.join(found)}")
    return bool(lines)


def run(name: str, folder: Path) -> Path:
    """Run a shortened recipe and return its run folder."""
    words = ["run", f"recipes/{name}.toml"]
    if name == "real_ct":
        settings = [f'dataset.ct.source.path="{_scans(folder / "ct")}"', 'dataset.ct.midline="grid"']
    elif name == "med3d_r1":
        settings = list(DEMO)
    else:
        settings = list(MEDVOL)
    _evid(*words, *(word for text in settings for word in ("--set", text)), "--out", str(folder / "runs"))
    return next((folder / "runs" / name).glob("2*"))


def run_ablation(name: str, folder: Path) -> Path:
    """Run a shortened ablation under one seed and return its folder."""
    text = (REPOSITORY / "recipes" / "ablations" / f"{name}.toml").read_text(encoding="utf-8")
    given = tomllib.loads(text)
    recipe = Path(given["recipe"]).stem
    short = SWEEP[recipe]
    text = re.sub(r"^seeds = \[.*?\]", "seeds = [17]", text, flags=re.MULTILINE)
    text = re.sub(r"steps=(\d+)", lambda match: f"steps={max(1, int(match[1]) // 60)}", text)
    text = re.sub(r"limit=(\d+)", lambda match: f"limit={min(22, int(match[1]))}", text)
    text = re.sub(r"prompts_per_step=(\d+)", "prompts_per_step=3", text)
    text = re.sub(
        r"^recipe = .*$", f'recipe = "{REPOSITORY}/recipes/{recipe}.toml"', text, flags=re.MULTILINE
    )
    lines = "".join(f"  {json.dumps(item)},\n" for item in short)
    text = re.sub(r"^overrides = \[[^\n]*\n", lambda match: match[0] + lines, text, flags=re.MULTILINE)
    file = folder / f"{name}.toml"
    file.write_text(text, encoding="utf-8")
    _evid("ablate", str(file), "--out", str(folder / "runs"), may_refuse=True)  # a metric may be missing
    return folder / "runs" / recipe / "ablations" / name


def _evid(*words: str, may_refuse: bool = False) -> None:
    command = [sys.executable, "-m", "evidcore", *words]
    done = subprocess.run(
        command, cwd=REPOSITORY, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True
    )
    if done.returncode and not (may_refuse and done.returncode == 2):
        sys.exit(
            f"{' '.join(words)}: exit status {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
        )


def kept(folder: Path) -> dict[str, Any]:
    """Return what is kept of a run, or of an ablation and its cells."""
    if (folder / "cells.json").is_file():
        cells = json.loads((folder / "cells.json").read_text(encoding="utf-8"))
        found: dict[str, Any] = {
            name: kept(Path(os.path.normpath(folder / cell["run"]))) for name, cell in sorted(cells.items())
        }
        file = folder / "ablation.json"
        table = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        return found | {"table": [_plain(row) for row in _tables(table)]}
    lines = {
        path.relative_to(folder).as_posix(): [_hash(json.loads(line)) for line in _lines(path)]
        for kind in ("answers", "rollouts")
        for path in sorted((folder / kind).glob("*.jsonl"))
    }
    results = {path.stem: _result(path) for path in sorted((folder / "results").glob("*.json"))}
    return {"lines": lines, "results": results}


def _tables(table: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the innermost tables of an ablation's comparison, each with where it stands."""
    if isinstance(table, dict):
        leaves = {key: value for key, value in table.items() if not isinstance(value, dict | list)}
        if leaves:
            yield leaves
        for value in table.values():
            yield from _tables(value)
    elif isinstance(table, list):
        for value in table:
            yield from _tables(value)


def _lines(path: Path) -> list[str]:
    return [line for line in path.read_text(encoding="utf-8").split("\n") if line]


def _result(path: Path) -> dict[str, Any]:
    result = json.loads(path.read_text(encoding="utf-8"))
    return {
        "rows": [_plain(row) for row in result["rows"]],
        "verdict": result.get("verdict", {}),
        "reference_lines": result.get("reference_lines", {}),
        "figures": _plain(result.get("figures", {})),
    }


def _plain(value: Any) -> Any:
    """Return a value without what differs between equal runs: seconds, hashes of inputs, paths."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items() if key not in _LEFT_OUT}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return re.sub(r"[^'\"\s]*/([^/'\"\s]+\.nii)", r"\1", value) if isinstance(value, str) else value


def _hash(line: Any) -> str:
    text = json.dumps(_plain(line), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def differences(before: Any, after: Any, where: str) -> list[str]:
    """Return a line for everything that differs; intervals say so in the line."""
    if isinstance(before, dict) and isinstance(after, dict):
        lines = []
        for key in before | after:
            if key not in before or key not in after:
                lines.append(f"{where}/{key}: only {'before' if key in before else 'after'}")
            else:
                lines += differences(before[key], after[key], f"{where}/{key}")
        return lines
    if isinstance(before, list) and isinstance(after, list):
        if all(isinstance(item, str) for item in before + after):
            other = sum(one != two for one, two in zip(before, after, strict=False))
            other += abs(len(before) - len(after))
            return [f"{where}: {other} of {len(before)} lines differ"] if other else []
        if all(isinstance(item, dict) and "metric" in item for item in before + after):
            return differences(_by_metric(before), _by_metric(after), where)
        if len(before) != len(after):
            return [f"{where}: {len(before)} before, {len(after)} after"]
        pairs = enumerate(zip(before, after, strict=True))
        return [line for index, (one, two) in pairs for line in differences(one, two, f"{where}[{index}]")]
    if before == after:
        return []
    what = "interval, " if where.rpartition("/")[2] in {"low", "high", "note", "p"} else ""
    return [f"{where}: {what}{before!r} before, {after!r} after"]


def _by_metric(rows: list[Any]) -> dict[str, Any]:
    """Return rows by what they say; their order is for the eye alone."""
    names = ("task", "name", "condition", "metric", "arm", "of", "label", "stage")
    return {" ".join(str(row[name]) for name in names if name in row): row for row in rows}


def _scans(folder: Path) -> Path:
    """Write eight volumes with two masks each, and their cases.csv; return the folder."""
    import nibabel
    import numpy as np

    folder.mkdir()
    rows = ["id,volume,patient,split,masks"]
    z, y, x = np.mgrid[:20, :40, :40]
    for index in range(8):
        rng = np.random.default_rng(index)
        hu = np.where((y - 20) ** 2 + (x - 20) ** 2 < 324, 20.0, -1000.0) + rng.normal(0, 20, z.shape)
        masks = []
        for name, side in (("liver", 12), ("spleen", 27)):
            radius = 3 + 3 * rng.random()
            inside = (z - 10) ** 2 + (y - 20) ** 2 + (x - side) ** 2 < radius**2
            hu[inside] = 120.0
            _save(nibabel, inside.astype("uint8"), folder / f"{index}-{name}.nii.gz")
            masks.append(f"{name}={index}-{name}.nii.gz")
        _save(nibabel, hu.astype("int16"), folder / f"{index}.nii.gz")
        split = "train" if index < 4 else "test"
        rows.append(f"case-{index},{index}.nii.gz,patient-{index},{split},{';'.join(masks)}")
    (folder / "cases.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return folder


def _save(nibabel: Any, array: Any, path: Path) -> None:
    """Write an array (z, y, x) of 10 x 8 x 8 mm voxels whose axes run up, to the back and to the left."""
    affine = [[-8, 0, 0, 0], [0, -8, 0, 0], [0, 0, 10, 0], [0, 0, 0, 1]]
    nibabel.save(nibabel.Nifti1Image(array.transpose(2, 1, 0), affine), path)


if __name__ == "__main__":
    sys.exit(main())
