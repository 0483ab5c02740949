"""Data set `phantom-abdomen`: generated abdominal CTs, and queries that name no organ.

A case carries its queries as `Case.queries`: each is a text and the names of the case's masks that together
answer it, so a task needs nothing from this module.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Gt, Le, MinLen

from evidcore.case import Case, Finding, MaskRef, Query, Split
from evidcore_plugin_phantoms.abdomen.facts import Facts
from evidcore_plugin_phantoms.abdomen.lesions import FINDINGS
from evidcore_plugin_phantoms.abdomen.queries import chosen, text_of
from evidcore_plugin_phantoms.abdomen.referents import KINDS, QueryKind
from evidcore_plugin_phantoms.abdomen.render import QUERIES, Population
from evidcore_plugin_phantoms.abdomen.scene import ORGANS, label_of
from evidcore_plugin_phantoms.cues import PATIENT_TYPE, check
from evidcore_plugin_phantoms.dataset import Phantoms


class PhantomAbdomen(Phantoms[Population]):
    """Abdominal phantoms with exact masks of organs and lesions, reports, and queries that must be looked up.

    Volumes are in HU, portal venous phase, 300 x 288 x 384 mm whatever the number of voxels. Masks are the
    organs ("left kidney"), their lesions included; the findings that are present ("kidney cyst"); and each of
    several lesions of a kind ("kidney cyst 2"; the number says nothing of size or place). Findings tell side,
    size, nature and organ. `notes["lesions"]` tells of each lesion its mask, organ, side, size, volume and
    nature, all measured on the masks. The patients of the splits are drawn from separate random streams, so
    they are disjoint.
    """

    findings = FINDINGS
    folder_name = "phantom-abdomen"

    def __init__(
        self,
        cache_folder: Path,
        *,
        train_cases: Annotated[int, Ge(0)] = 600,
        validation_cases: Annotated[int, Ge(0)] = 100,
        test_cases: Annotated[int, Ge(0)] = 150,
        seed: Annotated[int, Ge(0)] = 17,
        prior_strength: Annotated[float, Ge(0), Le(1)] = 0.0,
        subtlety: Annotated[float, Gt(0), Le(20)] = 1.0,
        prevalence: Annotated[float, Gt(0), Le(0.8)] = 0.25,
        queries_per_case: Annotated[int, Ge(0)] = 4,
        kinds: Annotated[tuple[QueryKind, ...], MinLen(1)] = KINDS,
        size_zyx: tuple[
            Annotated[int, Ge(20), Le(160)], Annotated[int, Ge(48), Le(512)], Annotated[int, Ge(64), Le(512)]
        ] = (40, 96, 128),
        scan_shift_mm: Annotated[float, Ge(0), Le(120)] = 0.0,
        in_plane_shift_mm: Annotated[float, Ge(0), Le(60)] = 0.0,
        size_spread: Annotated[float, Ge(0), Le(0.4)] = 0.0,
        mirrored: Annotated[float, Ge(0), Le(1)] = 0.0,
        cue_of: str = PATIENT_TYPE,
        header_cue: Annotated[float, Ge(0), Le(1)] = 0.0,
        device_cue: Annotated[float, Ge(0), Le(1)] = 0.0,
        table_cue: Annotated[float, Ge(0), Le(1)] = 0.0,
        company: Annotated[float, Ge(0), Le(1)] = 0.0,
    ) -> None:
        """Describe the set; nothing is drawn before cases are asked for.

        Args:
            cache_folder: where volumes are kept, in a folder named by the hash of all options.
            train_cases: patients to learn from.
            validation_cases: patients to choose by.
            test_cases: patients to measure on.
            seed: every seed is another population.
            prior_strength: how well text alone predicts findings and places. At 0 it does not. Above 0 each
                patient has an indication ("jaundice, pain on the left"), which stands in the queries and in
                the case's notes; at 1 a finding is five times as likely, at most 90 %, under its own
                indication, and with probability 0.95 a kidney's lesion is on the side of the pain, as is the
                largest lesion of an organ seen from the others.
            subtlety: multiplies the noise (12 to 22 HU); the contrast-to-noise ratio of every lesion falls.
            prevalence: probability of each finding; in 45 of 100 there is a second lesion of the kind.
            queries_per_case: most queries about a case, each of another kind. Of a kind whose words leave two
                masks open, the one on the left is meant as often as the one on the right.
            kinds: which queries are asked.
            size_zyx: voxels of a volume; the same patients on a finer or coarser grid.
            scan_shift_mm: how far up or down a patient's scan may be moved. At 0 organs lie at their usual
                heights, which can be known without looking; above, those at the ends can be cut or missing.
            in_plane_shift_mm: how far to the front or back, and to the left or right, as well.
            size_spread: how much larger a patient may be: up to 1 + `size_spread` times as large, or as much
                smaller. Large ones may reach beyond the field of view.
            mirrored: how likely a patient's organs are mirrored, the liver on the left. Names say the side
                on which an organ lies.
            cue_of: what hidden cues follow: the name of a finding; left out, the type of patient.
                No text tells of a cue.
            header_cue: how likely the distance of slices that the header states follows it, from 0.8 to 1.2
                times the true one; else it is any of the same values. The voxels and all sizes stay.
            device_cue: how likely the noise follows it, from 12 to 22 HU at a subtlety of 1. At 0 the noise
                is anything between.
            table_cue: how likely the height of the table follows it, over 11 mm. At 0 it lies 5 mm behind
                the back.
            company: how strongly findings of a patient's type come together, and their lesions lie on one
                side, as with `prior_strength`; no text tells the type or the side.
        """
        check(self.folder_name, FINDINGS, cue_of, company, prior_strength)
        population = Population(
            seed=seed,
            prior_strength=prior_strength,
            subtlety=subtlety,
            prevalence=prevalence,
            size_zyx=size_zyx,
            scan_shift_mm=scan_shift_mm,
            in_plane_shift_mm=in_plane_shift_mm,
            size_spread=size_spread,
            mirrored=mirrored,
            cue_of=cue_of,
            header_cue=header_cue,
            device_cue=device_cue,
            table_cue=table_cue,
            company=company,
        )
        counts = {"train": train_cases, "validation": validation_cases, "test": test_cases}
        super().__init__(cache_folder, population, counts)
        self._queries_per_case = queries_per_case
        self._kinds = kinds

    def _asked(self) -> Mapping[str, Any]:
        return {"queries": [self._queries_per_case, self._kinds]}

    def cases(self, split: Split) -> Iterator[Case]:
        """Yield the cases of a split; draws them first if they are not in the cache."""
        if not self._counts[split]:
            return
        folder, known = self._drawn(split)
        facts = [Facts.read(each["facts"]) for each in known]
        queries = self._queries(split, facts, [each["indication"] for each in known])
        for number, told in enumerate(known):
            yield self._case(folder, split, number, told, facts[number], queries[number])

    def _queries(self, split: str, facts: list[Facts], indications: list[str]) -> list[tuple[Query, ...]]:
        streams = [self._population.stream(split, number, QUERIES) for number in range(len(facts))]
        balancing = self._population.balancing(split)
        asked = chosen(facts, self._kinds, self._queries_per_case, streams, balancing)
        told = self._population.prior_strength > 0
        return [
            tuple(
                Query(
                    id=f"query-{index}",
                    text=text_of(referent, stream, indication if told else None),
                    masks=referent.masks,
                    among=referent.among,
                    kind=referent.kind,
                )
                for index, referent in enumerate(referents)
            )
            for referents, stream, indication in zip(asked, streams, indications, strict=True)
        ]

    def _case(
        self,
        folder: Path,
        split: str,
        number: int,
        known: Mapping[str, Any],
        facts: Facts,
        queries: tuple[Query, ...],
    ) -> Case:
        common = self._common(folder, split, number, known)
        common["findings"] = tuple(_with_details(finding, facts) for finding in common["findings"])
        common["notes"]["lesions"] = [dataclasses.asdict(lesion) for lesion in facts.lesions]
        return Case(**common, masks=_masks(str(folder / f"{number:05d}.npz"), facts), queries=queries)


def _with_details(finding: Finding, facts: Facts) -> Finding:
    """Return a finding with its nature and organ, where the phantom has it."""
    lesions = facts.of_finding(finding.name)
    if not lesions:
        return finding
    organ = lesions[0].organ.removeprefix("left ").removeprefix("right ")
    return dataclasses.replace(finding, malignant=lesions[0].malignant, location=organ)


def _masks(path: str, facts: Facts) -> dict[str, MaskRef]:
    """Return the masks by name: organs, findings, then the lesions that share one."""
    masks = {
        organ: MaskRef(path=path, key="organs", label=label_of(organ))
        for organ in ORGANS
        if facts.organs_ml[organ]
    }
    for label, finding in enumerate(FINDINGS, start=1):
        if facts.of_finding(finding):
            masks[finding] = MaskRef(path=path, key="findings", label=label)
    for label, lesion in enumerate(facts.lesions, start=1):
        if lesion.mask not in masks:
            masks[lesion.mask] = MaskRef(path=path, key="lesions", label=label)
    return masks
