"""Data set `phantom-abdomen`: generated abdominal CTs, and queries that name no organ.

Who it is, how it looks, what is said of it, what is asked about it: each is drawn from streams of its own. A
query is a text and the names of the case's masks that together answer it.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Gt, Le, MinLen

from evidcore.api import Finding, InlineOptions, MaskRef
from evidcore.case import Query
from evidcore_plugin_phantoms.abdomen.anatomy import draw_tissue, healthy, lower_table
from evidcore_plugin_phantoms.abdomen.lesions import (
    FINDINGS,
    KINDS,
    Facts,
    Lesion,
    LesionSpec,
    grow,
    measure,
    mirrored,
    other_side,
    without_side,
)
from evidcore_plugin_phantoms.abdomen.queries import KINDS as QUERY_KINDS
from evidcore_plugin_phantoms.abdomen.queries import QueryKind, chosen, text_of
from evidcore_plugin_phantoms.abdomen.scene import ORGANS, TABLES, Grid, label_of
from evidcore_plugin_phantoms.cues import NO_CUES, Cues
from evidcore_plugin_phantoms.phantoms import BALANCING, Count, Described, Drawn, Phantoms, chances, noisy
from evidcore_plugin_phantoms.shapes import Volume
from evidcore_plugin_phantoms.wording import ABSENT, Sentence, naming, on_the, one_of

INDICATIONS: dict[str, list[str]] = TABLES["indications"]
SECOND = 0.45  # share of findings of which there are two
CROWD = 2  # an organ that has so many lesions gets no second one of a kind
# streams of a phantom: noise alone depends on the grid; a lesion's is LESION with its finding and number, a
# cue's CUE with its own
ANATOMY, NOISE, WORDS, QUERIES, RANGE, LESION, POSE, CUE = range(8)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DescribedAbdomen(Described):
    """What is said of an abdomen, and what was measured."""

    facts: Facts


@dataclasses.dataclass(kw_only=True, eq=False)
class PhantomAbdomen(Phantoms):
    """Abdominal phantoms with exact masks of organs and lesions, reports, and queries that must be looked up.

    Volumes are in HU, portal venous phase, 300 x 288 x 384 mm whatever the number of voxels. Masks are the
    organs ("left kidney"), their lesions included; the findings that are present ("kidney cyst"); and each of
    several lesions of a kind ("kidney cyst 2"; the number says nothing of size or place). Findings tell side,
    size, nature and organ. `notes["lesions"]` tells of each lesion its mask, organ, side, size, volume and
    nature, all measured on the masks. The patients of the splits are drawn from separate random streams, so
    they are disjoint.

    Args:
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
    """

    train_cases: Count = 600
    validation_cases: Count = 100
    test_cases: Count = 150
    prior_strength: Annotated[float, Ge(0), Le(1)] = 0.0
    subtlety: Annotated[float, Gt(0), Le(20)] = 1.0
    prevalence: Annotated[float, Gt(0), Le(0.8)] = 0.25
    queries_per_case: Count = 4
    kinds: Annotated[tuple[QueryKind, ...], MinLen(1)] = QUERY_KINDS
    size_zyx: tuple[
        Annotated[int, Ge(20), Le(160)], Annotated[int, Ge(48), Le(512)], Annotated[int, Ge(64), Le(512)]
    ] = (40, 96, 128)
    scan_shift_mm: Annotated[float, Ge(0), Le(120)] = 0.0
    in_plane_shift_mm: Annotated[float, Ge(0), Le(60)] = 0.0
    size_spread: Annotated[float, Ge(0), Le(0.4)] = 0.0
    mirrored: Annotated[float, Ge(0), Le(1)] = 0.0
    cues: Annotated[Cues, InlineOptions] = NO_CUES

    findings = FINDINGS
    folder_name = "phantom-abdomen"
    asked = ("queries_per_case", "kinds")
    known_as = DescribedAbdomen

    def __post_init__(self) -> None:
        """Refuse cues that mean nothing; nothing is drawn before cases are asked for."""
        self.cues.check(self.folder_name, FINDINGS, self.prior_strength)

    def draw(self, split: str, number: int, *, without: str | None = None) -> Drawn:
        """Draw one phantom; on another grid it is the same patient with other noise.

        A twin, without a finding that the phantom shows, differs in the voxels of its lesions and where the
        scanner's blur reaches from there. It has the phantom's cues.
        """
        stream = functools.partial(self.stream, split, number)
        rng = stream(ANATOMY)
        strength = self.cues.company or self.prior_strength
        wishes, kind, pain = draw_patient(rng, prevalence=self.prevalence, prior_strength=strength)
        higher_mm = self.scan_shift_mm * stream(RANGE).uniform(-1, 1)
        pose = stream(POSE)
        back_mm, left_mm = self.in_plane_shift_mm * pose.uniform(-1, 1, 2)
        scale = float((1 + self.size_spread) ** pose.uniform(-1, 1))
        grid = Grid(self.size_zyx, (higher_mm / scale, back_mm / scale, left_mm / scale), scale)
        mirror = bool(pose.random() < self.mirrored)
        scene = healthy(rng, grid, draw_tissue(rng))
        grown = grow(functools.partial(stream, LESION), scene, wishes, without=without)
        shows = {each.finding for each in grown} | ({without} if without else set())
        scanned = self.cues.scanner(functools.partial(stream, CUE), tuple(INDICATIONS), kind, shows)
        if scanned.table is not None:
            lower_table(scene, scanned.table)
        if mirror:
            scene.mirror()
            grown = [mirrored(each, grid.size_zyx[2]) for each in grown]
            pain = other_side(pain)
        facts = measure(scene, grown, mirrored=mirror)
        lesions, findings = np.zeros_like(scene.organs), np.zeros_like(scene.organs)
        for index, each in enumerate(grown, start=1):
            lesions[each.box][each.region] = index
            findings[each.box][each.region] = FINDINGS.index(each.finding) + 1
        noise = stream(NOISE)
        noise_hu = scanned.noise_hu(noise) * self.subtlety
        return Drawn(
            hu=noisy(_blurred(_blurred(scene.hu, 1), 2), noise_hu, noise),
            spacing_mm_zyx=scanned.spacing_mm(grid.spacing_mm_zyx),
            # places from 1: in ORGANS, lesions belonging to their organ; in the facts; in FINDINGS
            arrays={"organs": scene.organs, "lesions": lesions, "findings": findings},
            known=DescribedAbdomen.of(
                sentences(stream(WORDS), facts),
                (finding_of(name, facts.of_finding(name)) for name in FINDINGS),
                impression=impression(facts.lesions),
                indication=f"{kind}, pain on the {pain}",
                facts=facts,
            ),
        )

    def parts(
        self, split: str, known: Sequence[DescribedAbdomen], paths: Sequence[str]
    ) -> Iterator[dict[str, Any]]:
        """Yield report, findings, masks and queries of each case."""
        facts = [each.facts for each in known]
        streams = [self.stream(split, number, QUERIES) for number in range(len(facts))]
        asked = chosen(facts, self.kinds, self.queries_per_case, streams, self.stream(split, *BALANCING))
        indicated = self.prior_strength > 0
        for each, referents, stream, path in zip(known, asked, streams, paths, strict=True):
            fields = each.fields(indicated=indicated)
            fields["notes"]["lesions"] = [dataclasses.asdict(lesion) for lesion in each.facts.lesions]
            queries = tuple(
                Query(
                    id=f"query-{index}",
                    text=text_of(referent, stream, each.indication if indicated else None),
                    masks=referent.masks,
                    among=referent.among,
                    kind=referent.kind,
                )
                for index, referent in enumerate(referents)
            )
            yield {**fields, "masks": _masks(path, each.facts), "queries": queries}


def _blurred(hu: Volume, axis: int, share: float = 0.12) -> Volume:
    """Give each voxel `share` of its two neighbours along `axis`, as a scanner does."""
    soft = hu.copy()
    along, into = np.moveaxis(hu, axis, 0), np.moveaxis(soft, axis, 0)
    into[1:-1] += np.float32(share) * (along[:-2] + along[2:] - 2 * along[1:-1])
    return soft


def finding_of(name: str, lesions: Sequence[Lesion]) -> Finding:
    """Return a finding with what its lesions have in common; the largest tells its size."""
    if not lesions:
        return Finding(name=name, state="absent")
    sides = {lesion.side for lesion in lesions} - {None}
    return Finding(
        name=name,
        side="both" if len(sides) == 2 else next(iter(sides), None),
        size_mm=max(lesion.size_mm for lesion in lesions),
        malignant=lesions[0].malignant,
        location=without_side(lesions[0].organ),
    )


def _masks(path: str, facts: Facts) -> dict[str, MaskRef]:
    """Return the masks by name: organs, findings, then the lesions that share one."""
    organs = [organ for organ in ORGANS if facts.organs_ml[organ]]
    masks = {organ: MaskRef(path=path, key="organs", label=label_of(organ)) for organ in organs}
    for label, finding in enumerate(FINDINGS, start=1):
        if facts.of_finding(finding):
            masks[finding] = MaskRef(path=path, key="findings", label=label)
    for label, lesion in enumerate(facts.lesions, start=1):
        masks.setdefault(lesion.mask, MaskRef(path=path, key="lesions", label=label))
    return masks


def draw_patient(
    rng: np.random.Generator, *, prevalence: float, prior_strength: float
) -> tuple[tuple[LesionSpec, ...], str, str]:
    """Draw a patient's type and side of pain, then findings given the type, then places given the side.

    The side says where lesions are: with probability 0.5 + 0.45 * `prior_strength` each finding of a kidney
    begins in the kidney of that side, and of the lesions of an organ the largest lies in the half of that
    side. The others lie in the other half.

    Returns:
        What he is to have, his type, the side of his pain.
    """
    kind = int(rng.integers(len(INDICATIONS)))
    outward = int(rng.choice([-1, 1]))
    table = chances(FINDINGS, INDICATIONS, prevalence=prevalence, prior_strength=prior_strength)
    present = rng.random(len(FINDINGS)) < table[kind]
    toward = 0.5 + 0.45 * prior_strength
    kidneys = np.where(rng.random(len(FINDINGS)) < toward, outward, -outward)
    second = rng.random((len(FINDINGS), 2))  # whether there is one, whether in the same kidney
    organs = dict.fromkeys(_organ(finding, each) for finding in FINDINGS for each in (-1, 1))
    leans = {organ: outward if rng.random() < toward else -outward for organ in organs}
    sizes = rng.random((len(FINDINGS), 2))

    def wish(place: int, instance: int, turned: int) -> LesionSpec:
        low, high = KINDS[FINDINGS[place]].diameter_mm
        return LesionSpec(
            finding=FINDINGS[place],
            organ=_organ(FINDINGS[place], turned * int(kidneys[place])),
            diameter_mm=float(low + sizes[place, instance] * (high - low)),
        )

    wishes = [wish(int(place), 0, 1) for place in np.flatnonzero(present)]
    for place in np.flatnonzero(present & (second[:, 0] < SECOND)):
        other = wish(int(place), 1, 1 if second[place, 1] < 0.5 else -1)
        if sum(item.organ == other.organ for item in wishes) < CROWD:
            wishes.append(other)
    largest_mm = {wish.organ: wish.diameter_mm for wish in sorted(wishes, key=lambda wish: wish.diameter_mm)}
    leaning = []
    for each in wishes:
        is_largest = each.diameter_mm == largest_mm[each.organ]
        leaning.append(dataclasses.replace(each, lean=leans[each.organ] * (1 if is_largest else -1)))
    return tuple(leaning), tuple(INDICATIONS)[kind], "left" if outward == 1 else "right"


def _organ(finding: str, outward: int) -> str:
    side = {1: "left ", -1: "right "}[outward] if KINDS[finding].organ == "kidney" else ""
    return side + KINDS[finding].organ


def sentences(rng: np.random.Generator, facts: Facts) -> list[Sentence]:
    """Return a report's sentences: what is normal first, then each lesion with organ, side, size and nature.

    Both parts are in the order of the vocabulary; lesions of one kind follow each other.
    """
    lines = [
        Sentence(text=one_of(rng, texts), label="normal")
        for texts in TABLES["healthy"].values()
        if rng.random() < 0.4
    ]
    for finding in FINDINGS:
        pattern = one_of(rng, ABSENT)
        if not facts.of_finding(finding):
            lines.append(naming(pattern, finding, "normal"))
    for finding in FINDINGS:
        for lesion in facts.of_finding(finding):
            slots: dict[str, Any] = {"size": f"{lesion.size_mm:.0f}", "place": on_the(lesion.side)}
            slots["nature"] = "malignant" if lesion.malignant else "benign"
            lines.append(naming(one_of(rng, TABLES["present"]), finding, "abnormal", **slots))
    return lines


def impression(lesions: Sequence[Lesion]) -> str:
    """Return the lesions alone, one short sentence for each kind and place."""
    told = dict.fromkeys(f"{lesion.finding.capitalize()}{on_the(lesion.side)}." for lesion in lesions)
    return " ".join(told) or "No abnormality."
