"""Chest phantoms from first to last: who it is, how it looks, what is said of it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from evidcore.text.findings import CT_RATE_FINDINGS
from evidcore_plugin_phantoms import drawing
from evidcore_plugin_phantoms.anatomy import healthy
from evidcore_plugin_phantoms.canvas import SIZE_ZYX, SPACING_MM_ZYX
from evidcore_plugin_phantoms.population import draw_patient, side_of
from evidcore_plugin_phantoms.shapes import Region
from evidcore_plugin_phantoms.signs import SIGNS, VISIBLE_VOXELS, VISIBLE_VOXELS_OTHERWISE, index_of
from evidcore_plugin_phantoms.wording import Shown, impression, sentences, written


@dataclasses.dataclass(frozen=True, kw_only=True)
class Population(drawing.Population):
    """The options that decide what a chest phantom looks like."""

    subtlety: float
    prevalence: float
    names_absent: bool = True

    @property
    def case_mb(self) -> float:
        """Return what a case takes on disk, in MB."""
        return 0.3

    def drawn(self, split: str, number: int) -> drawing.Drawn:
        """Draw one phantom with its words."""
        phantom, rng = draw(self, split, number)
        return drawing.Drawn(
            hu=phantom.hu,
            spacing_mm_zyx=SPACING_MM_ZYX,
            arrays=phantom.masks,
            known=describe(phantom, rng, names_absent=self.names_absent),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Phantom:
    """A drawn phantom: voxels in HU, and for each finding that shows its voxels, side and size."""

    hu: np.ndarray[Any, np.dtype[np.int16]]
    masks: dict[str, Region]
    shown: tuple[Shown, ...]
    indication: str


def stream(population: Population, split: str, number: int) -> np.random.Generator:
    """Return a phantom's own random stream: no other case of any split or seed shares it."""
    return np.random.default_rng([population.seed, drawing.SPLITS.index(split), number])


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


def describe(phantom: Phantom, rng: np.random.Generator, *, names_absent: bool = True) -> dict[str, Any]:
    """Return what is known of a phantom, in JSON's types."""
    shown = {item.name: item for item in phantom.shown}
    absent = [name for name in CT_RATE_FINDINGS if name not in shown]
    said = sentences(
        rng, absent, phantom.shown, heart_is_large="cardiomegaly" in shown, names_absent=names_absent
    )
    report = written(said)
    return {
        "report": report.text,
        "spans": report.spans,
        "impression": impression(phantom.shown),
        "indication": phantom.indication,
        "findings": [
            {
                "name": name,
                "present": name in shown,
                "side": shown[name].side if name in shown else None,
                "size_mm": shown[name].size_mm if name in shown else None,
                "span": report.places.get(name),
            }
            for name in CT_RATE_FINDINGS
        ],
    }


if __name__ == "__main__":
    drawing.work(Population)
