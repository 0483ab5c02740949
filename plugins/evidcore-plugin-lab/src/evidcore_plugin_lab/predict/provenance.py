"""What an answer rests on: the scan, the model, the software; no header and no name of a person."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evidcore import __version__
from evidcore.case import VolumeRef
from evidcore.data import Volume
from evidcore.data.content import volume_key
from evidcore.data.reading import opened
from evidcore.runs.folder import RunFolder, sha256
from evidcore.runs.lock import versions


def scan_record(volume: Volume, ref: VolumeRef) -> dict[str, Any]:
    """Return what was looked at, and how it was read; its header is not repeated."""
    return {
        "path": ref.path,
        "series": ref.key,
        "tilted": ref.tilted,
        "resampled": opened(ref)[1].is_resampled,
        "fingerprint": volume_key(ref),
        "intensity": volume.intensity,
        "shape_zyx": list(volume.shape_zyx),
        "spacing_mm_zyx": [round(step, 6) for step in volume.spacing_mm_zyx],
        "voxel_to_mm_zyx": volume.affine.tolist(),
    }


def model_record(folder: RunFolder, recipe: str, weights: Path) -> dict[str, Any]:
    """Return which model answered: its recipe, run and stage, and the hashes of its weights."""
    lock = folder.lock()
    shown = (folder.path / "checkpoints").iterdir()  # links, named after their stages
    return {
        "recipe": recipe,
        "recipe_hash": lock["recipe"]["hash"],
        "run": folder.path.name,
        "stage": max(path.name for path in shown if path.resolve() == weights.resolve()),
        "sha256": {path.name: sha256(path) for path in sorted(weights.glob("*.safetensors"))},
    }


def software(folder: RunFolder) -> dict[str, Any]:
    """Return the versions that answered, and the packages of the run's components."""
    packages = {name: table["version"] for name, table in folder.lock()["package"].items()}
    return {"versions": {"evidcore": __version__, **versions()}, "packages": packages}
