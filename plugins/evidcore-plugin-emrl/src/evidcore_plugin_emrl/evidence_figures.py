"""What a report and the slice that it cites are worth, held against the findings and masks of the case."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from types import MappingProxyType

from evidcore_plugin_medvol_r1.target import measure
from evidcore_plugin_reports.agreement import affirmed, compare_details, states

from evidcore.api import Finding, Prompt
from evidcore.case import Evidence
from evidcore.contracts import LabelError, Totals
from evidcore.data import read_geometry
from evidcore.evaluate.pooling import Figure
from evidcore_plugin_emrl.report_evidence import best_evidence

HEADLINE = "grounded_accuracy"
CEILING = "gold_grounded_accuracy"
DETAILS: Mapping[str, str] = MappingProxyType({
    "side_accuracy": "side",
    "malignancy_accuracy": "malignant",
    "location_accuracy": "location",
})
UNITS: Mapping[str, str] = MappingProxyType({
    HEADLINE: "rate",
    "hallucination_rate": "rate",
    "omission_rate": "rate",
    "evidence_hit_rate": "rate",
    "false_citation_rate": "rate",
    "slice_off": "plain",
    "slice_off_mm": "plain",
    "findings_f1": "score",
    **dict.fromkeys(DETAILS, "rate"),
    CEILING: "rate",
})
BY_FINDING = (HEADLINE, "hallucination_rate", "omission_rate", "evidence_hit_rate", *DETAILS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seen:
    """What is known of the scan that a prompt asks about."""

    present: tuple[str, ...]
    absent: tuple[str, ...]
    areas: Mapping[str, Mapping[int, int]]  # of the findings that are present and have a mask, by slice
    gold: Mapping[str, int]  # finding -> the slice that a right answer cites for it
    cites_each: bool  # a slice for each finding

    def shows(self, finding: str, evidence: Evidence | None) -> bool:
        """Tell by the mask whether the slice that is cited for a finding shows it."""
        z = self.cited(finding, evidence)
        return z is not None and self.areas.get(finding, {}).get(z, 0) > 0

    def cited(self, finding: str, evidence: Evidence | None) -> int | None:
        """Return the slice that is cited for a finding; None where none is."""
        if evidence is None:
            return None
        return evidence.slices.get(finding) if self.cites_each else evidence.slice

    def grounded(self, said: Iterable[str], evidence: Evidence | None) -> set[str]:
        """Return the findings that are rightly affirmed and shown by the slice cited for them."""
        return {name for name in said if name in self.present and self.shows(name, evidence)}

    def grounded_accuracy(self, said: set[str], evidence: Evidence | None) -> float:
        """Return the grounded findings over those that are affirmed or present.

        1 on a healthy scan of which nothing is affirmed and no slice is cited.
        """
        of = said | {*self.present}
        return len(self.grounded(said, evidence)) / len(of) if of else float(not cites(evidence))


def cites(evidence: Evidence | None) -> bool:
    """Tell whether any slice is cited."""
    return evidence is not None and (evidence.slice is not None or bool(evidence.slices))


def seen(prompt: Prompt, cache_folder: Path) -> Seen:
    """Measure the masks of a prompt's findings, kept in the cache.

    Raises:
        DataError: if a mask cannot be read; names the case.
    """
    known, best = states(prompt.case.findings), best_evidence(prompt)
    present = tuple(name for name, state in known.items() if state == "present")
    masked = [name for name in present if name in prompt.case.masks]
    areas = {name: measure(prompt.case, [name], cache_folder).areas for name in masked}
    gold: dict[str, int] = {}
    if best is not None:
        shown = prompt.reference["present"]
        gold = dict(best.slices) if best.slice is None else dict.fromkeys(shown, best.slice)
    return Seen(
        present=present,
        absent=tuple(name for name, state in known.items() if state == "absent"),
        areas=areas,
        gold=gold,
        cites_each=bool(prompt.reference["targets"]),
    )


def figures(
    prompt: Prompt,
    known: Seen,
    findings: Sequence[Finding] | LabelError,
    evidence: Evidence | None,
    malformed: str | None,
    names: Sequence[str],
    told: Mapping[str, Set[str]],
) -> tuple[dict[str, Figure], dict[str, str]]:
    """Return the figures of an answer, and why others are missing.

    Each of `names` has figures of its own; `told` are the details that a right report tells, by finding.
    """
    if isinstance(findings, LabelError):
        return {}, dict.fromkeys(UNITS, str(findings))
    said = {*affirmed(findings)} & {*known.present, *known.absent}
    right, wrong = said & {*known.present}, said & {*known.absent}
    grounded = set() if malformed else known.grounded(said, evidence)
    hits = {name for name in right if known.shows(name, evidence)}
    healthy = float(not known.present)
    details = compare_details(findings, prompt.case.findings)
    asked = {name: {item for item in details if key in told.get(item, ())} for name, key in DETAILS.items()}
    each: dict[str, tuple[set[str], set[str]]] = {
        HEADLINE: (grounded, said | {*known.present}),
        "hallucination_rate": (wrong, said),
        "omission_rate": ({*known.present} - said, {*known.present}),
        "evidence_hit_rate": (hits, {*known.present}),
        **{
            name: ({item for item in some if details[item][DETAILS[name]]}, some)
            for name, some in asked.items()
        },
    }
    found: dict[str, Figure] = {
        HEADLINE: 0.0 if malformed else known.grounded_accuracy(said, evidence),
        **{name: _ratio(some) for name, some in each.items() if name != HEADLINE},
        "findings_f1": Totals("ratio", (2.0 * len(right), float(len(said) + len(known.present)))),
        "false_citation_rate": Totals("ratio", (float(not known.present and cites(evidence)), healthy)),
        CEILING: known.grounded_accuracy({*known.present}, best_evidence(prompt)),
    }
    if known.present and not known.cites_each:
        found["evidence_hit_rate"] = Totals("ratio", (float(bool(hits)), 1.0))
    for name, (above, below) in each.items():
        found |= {f"{name}/{one}": _ratio((above & {one}, below & {one})) for one in names}
    cited = {name: known.cited(name, evidence) for name in known.present}
    off = [abs(z - known.gold[name]) for name, z in cited.items() if z is not None]
    if off:
        slices, step_mm = sum(off) / len(off), read_geometry(prompt.case.volumes[0]).spacing_mm_zyx[0]
        found |= {"slice_off": slices, "slice_off_mm": slices * step_mm}
        return found, {}
    why = "no slice is cited" if known.present else "the scan is healthy"
    return found, dict.fromkeys(("slice_off", "slice_off_mm"), why)


def _ratio(sets: tuple[set[str], set[str]]) -> Totals:
    above, below = sets
    return Totals("ratio", (float(len(above & below)), float(len(below))))
