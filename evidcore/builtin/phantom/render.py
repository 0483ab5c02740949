"""Draw phantoms and write them to disk; runs as a process of its own, without torch.

`python -m evidcore.builtin.phantom.render WORK` takes its work as JSON.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nibabel
import numpy as np

from evidcore.builtin.findings import CT_RATE_FINDINGS
from evidcore.builtin.phantom.anatomy import healthy
from evidcore.builtin.phantom.canvas import SIZE_ZYX, SPACING_MM_ZYX, Region
from evidcore.builtin.phantom.population import draw_patient, side_of
from evidcore.builtin.phantom.signs import (
    SIGNS,
    VISIBLE_VOXELS,
    VISIBLE_VOXELS_OTHERWISE,
    index_of,
)
from evidcore.builtin.phantom.wording import Shown, impression, sentences

SPLITS = ("train", "validation", "test")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Population:
    """The options that decide what a phantom looks like."""

    seed: int
    prior_strength: float
    subtlety: float
    prevalence: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Phantom:
    """A drawn phantom: voxels in HU, and for each finding that shows its voxels, side and size."""

    hu: np.ndarray[Any, np.dtype[np.int16]]
    masks: dict[str, Region]
    shown: tuple[Shown, ...]
    indication: str


def stream(population: Population, split: str, number: int) -> np.random.Generator:
    """Return a phantom's own random stream: no other case of any split or seed shares it."""
    return np.random.default_rng([population.seed, SPLITS.index(split), number])


def draw(population: Population, split: str, number: int) -> tuple[Phantom, np.random.Generator]:
    """Draw one phantom; the stream that is returned goes on with its words."""
    rng = stream(population, split, number)
    patient = draw_patient(rng, prevalence=population.prevalence, prior_strength=population.prior_strength)
    wanted = {name for name, flag in zip(CT_RATE_FINDINGS, patient.present, strict=True) if flag}
    airways = index_of("peribronchial thickening")
    body = healthy(
        rng,
        large_heart="cardiomegaly" in wanted,
        cardiomegaly=index_of("cardiomegaly"),
        thick_airways=airways if "peribronchial thickening" in wanted else None,
    )
    sizes: dict[str, float | None] = {}
    for name, sign in SIGNS.items():
        if name in wanted:
            index = index_of(name)
            sizes[name] = sign(body, index, rng, patient.sides[index])
    masks, shown = {}, []
    voxels = np.bincount(body.owner.reshape(-1) + 1, minlength=len(CT_RATE_FINDINGS) + 1)[1:]
    for index, name in enumerate(CT_RATE_FINDINGS):
        if name in wanted and voxels[index] >= VISIBLE_VOXELS.get(name, VISIBLE_VOXELS_OTHERWISE):
            masks[name] = body.visible(index)
            side = side_of(name, patient.sides[index])
            shown.append(Shown(name=name, side=side, size_mm=sizes.get(name)))
    noise_hu = rng.uniform(12, 22) * population.subtlety
    noisy = rng.standard_normal(SIZE_ZYX, dtype=np.float32)
    noisy *= noise_hu
    noisy += body.hu
    hu = np.clip(noisy, -1024, 3071, out=noisy).astype(np.int16)
    phantom = Phantom(hu=hu, masks=masks, shown=tuple(shown), indication=patient.indication)
    return phantom, rng


def describe(phantom: Phantom, rng: np.random.Generator) -> dict[str, Any]:
    """Return what is known of a phantom, in JSON's types."""
    shown = {item.name: item for item in phantom.shown}
    absent = [name for name in CT_RATE_FINDINGS if name not in shown]
    lines = sentences(rng, absent, phantom.shown, heart_is_large="cardiomegaly" in shown)
    text, spans, places = "", [], {}
    for line in lines:
        start = len(text) + 1 if text else 0
        text = f"{text} {line.text}" if text else line.text
        spans.append((start, len(text), line.label))
        if line.finding is not None:
            places[line.finding] = (start + line.offset, start + line.offset + len(line.finding))
    return {
        "report": text,
        "spans": spans,
        "impression": impression(phantom.shown),
        "indication": phantom.indication,
        "findings": [
            {
                "name": name,
                "present": name in shown,
                "side": shown[name].side if name in shown else None,
                "size_mm": shown[name].size_mm if name in shown else None,
                "span": places[name],
            }
            for name in CT_RATE_FINDINGS
        ],
    }


def affine() -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the NIfTI affine: voxel x runs to the patient's left, y to posterior; NIfTI's world is RAS."""
    z, y, x = SPACING_MM_ZYX
    matrix = np.diag([-x, -y, z, 1.0])
    size_xyz = np.array(SIZE_ZYX[::-1])
    matrix[:3, 3] = -matrix[:3, :3] @ ((size_xyz - 1) / 2)
    return matrix


def _write_masks(path: Path, masks: Mapping[str, Region]) -> None:
    # what np.savez_compressed writes, at the level that halves the time
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, mask in masks.items():
            with archive.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array(member, mask, allow_pickle=False)


def write(population: Population, split: str, numbers: range, folder: Path, parent: int) -> None:
    """Write volumes, masks and descriptions of some cases; stop if the process that asked is gone."""
    for number in numbers:
        if parent and os.getppid() != parent:
            return
        phantom, rng = draw(population, split, number)
        stem = folder / f"{number:05d}"
        image = nibabel.Nifti1Image(phantom.hu.transpose(2, 1, 0), affine())
        image.header.set_xyzt_units("mm")
        stem.with_suffix(".nii").write_bytes(image.to_bytes())
        _write_masks(stem.with_suffix(".npz"), phantom.masks)
        stem.with_suffix(".json").write_text(json.dumps(describe(phantom, rng)), encoding="utf-8")


def main() -> None:
    """Read the work from the command line and do it."""
    work = json.loads(sys.argv[1])
    write(
        Population(**work["population"]),
        work["split"],
        range(*work["numbers"]),
        Path(work["folder"]),
        work["parent"],
    )


if __name__ == "__main__":
    main()
