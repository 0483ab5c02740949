"""Abdominal phantoms from first to last: who it is, how it looks, what is said of it."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np

from evidcore_plugin_phantoms import drawing
from evidcore_plugin_phantoms.abdomen.anatomy import draw_tissue, healthy, lower_table
from evidcore_plugin_phantoms.abdomen.facts import Facts, measure
from evidcore_plugin_phantoms.abdomen.lesions import FINDINGS, grow, mirrored, other_side
from evidcore_plugin_phantoms.abdomen.population import INDICATIONS, draw_patient
from evidcore_plugin_phantoms.abdomen.scene import Grid
from evidcore_plugin_phantoms.abdomen.wording import impression, sentences
from evidcore_plugin_phantoms.cues import Cues, scanner
from evidcore_plugin_phantoms.shapes import Volume
from evidcore_plugin_phantoms.wording import written

Labels = np.ndarray[Any, np.dtype[np.uint8]]
# streams of a phantom: noise alone depends on the grid; a lesion's is LESION with its finding and number, a
# cue's CUE with its own
ANATOMY, NOISE, WORDS, QUERIES, RANGE, LESION, POSE, CUE = range(8)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Population(Cues, drawing.Population):
    """The options that decide what an abdominal phantom looks like."""

    subtlety: float
    prevalence: float
    size_zyx: tuple[int, int, int]
    scan_shift_mm: float = 0.0
    in_plane_shift_mm: float = 0.0
    size_spread: float = 0.0
    mirrored: float = 0.0

    @property
    def case_mb(self) -> float:
        """Return what a case takes on disk, in MB."""
        return float(np.prod(self.size_zyx)) * 2.1e-6

    def drawn(self, split: str, number: int, *, without: str | None = None) -> drawing.Drawn:
        """Draw one phantom with its words."""
        phantom = draw(self, split, number, without=without)
        return drawing.Drawn(
            hu=phantom.hu,
            spacing_mm_zyx=phantom.spacing_mm_zyx,
            arrays={"organs": phantom.organs, "lesions": phantom.lesions, "findings": phantom.findings},
            known=describe(phantom, self.stream(split, number, WORDS)),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Phantom:
    """A drawn phantom: voxels in HU, label maps and what was measured on them, each array (z, y, x)."""

    hu: np.ndarray[Any, np.dtype[np.int16]]
    spacing_mm_zyx: tuple[float, float, float]  # as the header states it
    organs: Labels  # places in ORGANS, from 1; an organ's lesions are part of it
    lesions: Labels  # places in `facts.lesions`, from 1
    findings: Labels  # places in FINDINGS, from 1
    facts: Facts
    indication: str


def draw(population: Population, split: str, number: int, *, without: str | None = None) -> Phantom:
    """Draw one phantom; on another grid it is the same patient with other noise.

    A twin, without a finding that the phantom shows, differs in the voxels of its lesions and where the
    scanner's blur reaches from there. It has the phantom's cues.
    """
    rng = population.stream(split, number, ANATOMY)
    prior_strength = population.company or population.prior_strength
    patient = draw_patient(rng, prevalence=population.prevalence, prior_strength=prior_strength)
    grid, mirror = _pose(population, split, number)
    scene = healthy(rng, grid, draw_tissue(rng))
    grown = grow(
        functools.partial(population.stream, split, number, LESION), scene, patient.wishes, without=without
    )
    cue_streams = [population.stream(split, number, CUE, which) for which in range(3)]
    shows = {each.finding for each in grown} | ({without} if without else set())
    scanned = scanner(population, cue_streams, tuple(INDICATIONS), patient.kind, shows)
    if scanned.table is not None:
        lower_table(scene, scanned.table)
    if mirror:
        scene.mirror()
        grown = [mirrored(each, grid.size_zyx[2]) for each in grown]
    facts = measure(scene, grown, mirrored=mirror)
    lesions, findings = np.zeros_like(scene.organs), np.zeros_like(scene.organs)
    for index, each in enumerate(grown, start=1):
        lesions[each.box][each.region] = index
        findings[each.box][each.region] = FINDINGS.index(each.finding) + 1
    noise = population.stream(split, number, NOISE)
    noise_hu = scanned.noise_hu(noise) * population.subtlety
    return Phantom(
        hu=drawing.noisy(_blurred(_blurred(scene.hu, 1), 2), noise_hu, noise),
        spacing_mm_zyx=scanned.spacing_mm(grid.spacing_mm_zyx),
        organs=scene.organs,
        lesions=lesions,
        findings=findings,
        facts=facts,
        indication=other_side(patient.indication) if mirror else patient.indication,
    )


def _pose(population: Population, split: str, number: int) -> tuple[Grid, bool]:
    """Return where in the field of view and how large the patient is, and whether he is mirrored."""
    higher_mm = population.scan_shift_mm * population.stream(split, number, RANGE).uniform(-1, 1)
    rng = population.stream(split, number, POSE)
    back_mm, left_mm = population.in_plane_shift_mm * rng.uniform(-1, 1, 2)
    scale = float((1 + population.size_spread) ** rng.uniform(-1, 1))
    grid = Grid(population.size_zyx, (higher_mm / scale, back_mm / scale, left_mm / scale), scale)
    return grid, bool(rng.random() < population.mirrored)


def _blurred(hu: Volume, axis: int, share: float = 0.12) -> Volume:
    """Give each voxel `share` of its two neighbours along `axis`, as a scanner does."""
    soft = hu.copy()
    along, into = np.moveaxis(hu, axis, 0), np.moveaxis(soft, axis, 0)
    into[1:-1] += np.float32(share) * (along[:-2] + along[2:] - 2 * along[1:-1])
    return soft


def describe(phantom: Phantom, rng: np.random.Generator) -> dict[str, Any]:
    """Return what is known of a phantom, in JSON's types."""
    facts = phantom.facts
    report = written(sentences(rng, facts))
    return {
        "report": report.text,
        "spans": report.spans,
        "impression": impression(facts.lesions),
        "indication": phantom.indication,
        "facts": facts.plain(),
        "findings": [
            {
                "name": finding,
                "present": bool(facts.of_finding(finding)),
                "side": _side(facts, finding),
                "size_mm": max((lesion.size_mm for lesion in facts.of_finding(finding)), default=None),
                "span": report.places[finding],
            }
            for finding in FINDINGS
        ],
    }


def _side(facts: Facts, finding: str) -> str | None:
    sides = {lesion.side for lesion in facts.of_finding(finding)} - {None}
    return "both" if len(sides) == 2 else next(iter(sides), None)


if __name__ == "__main__":
    drawing.work(Population)
