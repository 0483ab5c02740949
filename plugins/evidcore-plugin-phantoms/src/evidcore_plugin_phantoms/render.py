"""Chest phantoms from first to last: who it is, how it looks, what is said of it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from evidcore.text.findings import CT_RATE_FINDINGS
from evidcore_plugin_phantoms import drawing
from evidcore_plugin_phantoms.anatomy import draw_table, healthy
from evidcore_plugin_phantoms.canvas import SPACING_MM_ZYX, Body
from evidcore_plugin_phantoms.cues import Cues, scanner
from evidcore_plugin_phantoms.population import INDICATIONS, draw_patient, side_of
from evidcore_plugin_phantoms.shapes import Region
from evidcore_plugin_phantoms.signs import SIGNS, VISIBLE_VOXELS, VISIBLE_VOXELS_OTHERWISE, index_of
from evidcore_plugin_phantoms.wording import Shown, impression, sentences, written

# streams of a phantom; each sign's is SIGN with its index, each cue's CUE with its own
PATIENT, ANATOMY, SIGN, NOISE, WORDS, CUE = range(6)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Population(Cues, drawing.Population):
    """The options that decide what a chest phantom looks like."""

    subtlety: float
    prevalence: float
    names_absent: bool = True

    @property
    def case_mb(self) -> float:
        """Return what a case takes on disk, in MB."""
        return 0.3

    def drawn(self, split: str, number: int, *, without: str | None = None) -> drawing.Drawn:
        """Draw one phantom with its words."""
        phantom = draw(self, split, number, without=without)
        return drawing.Drawn(
            hu=phantom.hu,
            spacing_mm_zyx=phantom.spacing_mm_zyx,
            arrays=phantom.masks,
            known=describe(phantom, self.stream(split, number, WORDS), names_absent=self.names_absent),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Phantom:
    """A drawn phantom: voxels in HU, and for each finding that shows its voxels, side and size."""

    hu: np.ndarray[Any, np.dtype[np.int16]]
    spacing_mm_zyx: tuple[float, float, float]  # as the header states it
    masks: dict[str, Region]
    shown: tuple[Shown, ...]
    indication: str


def draw(population: Population, split: str, number: int, *, without: str | None = None) -> Phantom:
    """Draw one phantom, each sign from a stream of its own.

    A sign that others hide is not drawn, so what is drawn is what is labelled. A twin, without a finding that
    the phantom shows, differs in that finding's voxels; without a large heart also in what lies on it. It has
    the phantom's cues.
    """
    patient = draw_patient(
        population.stream(split, number, PATIENT),
        prevalence=population.prevalence,
        prior_strength=population.company or population.prior_strength,
    )
    wanted = [name for name, flag in zip(CT_RATE_FINDINGS, patient.present, strict=True) if flag]
    choices: dict[tuple[int, int], int] = {}

    def painted(names: list[str]) -> tuple[Body, dict[str, float | None]]:
        return _painted(population, split, number, patient.sides, names, choices)

    body, sizes = painted(wanted)
    while hidden := [name for name in wanted if not _shows(body, name)]:
        wanted = [name for name in wanted if name not in hidden]
        body, sizes = painted(wanted)
    cue_streams = [population.stream(split, number, CUE, which) for which in range(3)]
    scanned = scanner(population, cue_streams, tuple(INDICATIONS), patient.indication, wanted)
    if without in wanted:
        wanted.remove(without)
        body, sizes = painted(wanted)
    shown = [
        Shown(name=name, side=side_of(name, patient.sides[index_of(name)]), size_mm=sizes.get(name))
        for name in wanted
    ]
    if scanned.table is not None:
        draw_table(body, scanned.table)
    noise = population.stream(split, number, NOISE)
    return Phantom(
        hu=drawing.noisy(body.hu, scanned.noise_hu(noise) * population.subtlety, noise),
        spacing_mm_zyx=scanned.spacing_mm(SPACING_MM_ZYX),
        masks={name: body.visible(index_of(name)) for name in wanted},
        shown=tuple(shown),
        indication=patient.indication,
    )


def _painted(
    population: Population,
    split: str,
    number: int,
    sides: tuple[int, ...],
    names: list[str],
    choices: dict[tuple[int, int], int],
) -> tuple[Body, dict[str, float | None]]:
    """Draw the chest with its signs; return it with the sizes of the signs, in mm."""
    airways = index_of("peribronchial thickening")
    body = healthy(
        population.stream(split, number, ANATOMY),
        large_heart="cardiomegaly" in names,
        cardiomegaly=index_of("cardiomegaly"),
        thick_airways=airways if "peribronchial thickening" in names else None,
    )
    body.choices = choices
    sizes: dict[str, float | None] = {}
    for name, sign in SIGNS.items():
        if name in names:
            index = index_of(name)
            sizes[name] = sign(body, index, population.stream(split, number, SIGN, index), sides[index])
    return body, sizes


def _shows(body: Body, name: str) -> bool:
    """Tell whether enough of a sign can be seen."""
    voxels = np.count_nonzero(body.visible(index_of(name)))
    return bool(voxels >= VISIBLE_VOXELS.get(name, VISIBLE_VOXELS_OTHERWISE))


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
