"""What an audit may claim of each finding of written reports: is it seen?

Three rates decide: how often reports affirm a finding of patients who have it, of patients who do not, and of
those who have it over a showing without it (a twin). It is seen where nothing that does not look tells it
apart as well, and it leaves the report when it leaves the scan, while the others stay. What then is still
affirmed more often than of patients who do not have it was read from something else in the scan.
"""

import dataclasses
import math
import statistics
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING

from evidcore.api import EvalResult, Row, paired_interval
from evidcore.contracts.evaluating import Interval
from evidcore.evaluate.bootstrap import difference_p, holm

if TYPE_CHECKING:
    from evidcore_plugin_reports.evaluation import ReportResult

SAME_PATIENT = ("twin", "replaced", "occluded")  # change nothing but the finding, the best first
HALF = 0.5  # of what is told apart: more read elsewhere, or lost of other findings, is no sight
LITTLE = 0.25  # a finding that leaves fewer reports than this when it leaves the scan is not seen
KINDS = ("seen", "seen in part", "seen in whole or in part", "not seen", "not settled")
SIGNIFICANT = 0.05
Results = Mapping[str, Sequence["ReportResult"]]  # by rule or condition
Rates = Mapping[str, float]  # how often a finding is affirmed, by prompt
Rate = tuple[float, float, float]  # a share, and the ends of its interval


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """What was measured of one finding."""

    gain: float  # own minus the best that does not look, in balanced accuracy
    fall: Interval  # own minus twins, in the rate at which it is affirmed
    p: float  # of no fall; 1 where there is none, or no gain, or other patients without it have it as often
    apart: float  # the rates at which own reports affirm it: where it is minus where it is not
    left: tuple[float, float]  # ends of the rate over twins minus the rate where it is not
    others_lost: float  # share of the other findings that leave reports with it

    def kind(self, p: float) -> str:
        """Return what may be claimed, given the p value that counts how many findings were tried."""
        low, high = self.left
        if p < SIGNIFICANT and self.others_lost <= HALF:
            if low > 0:
                return "seen in part"
            return "seen" if high <= HALF * self.apart else "seen in whole or in part"
        end = self.fall.value if self.fall.is_tied else self.fall.high
        return "not seen" if end is not None and end < LITTLE else "not settled"


def claims(reports: "ReportResult", blind: Results, removed: Results) -> EvalResult.Claims | None:
    """Return what may be claimed of each finding that some patients have, some not, and some lost.

    None where no showing of the same patients lacks a finding.

    Args:
        reports: over the cases' own volumes.
        blind: reports of rules, and over showings in which nothing can be seen.
        removed: reports over showings without one finding each.
    """
    names = sorted({name for answer in reports.answers for name in answer.present})
    measured = {name: _measured(name, reports, blind, removed) for name in names}
    known = {name: finding for name, finding in measured.items() if finding is not None}
    if not known:
        return None
    adjusted = dict(zip(known, holm([finding.p for finding in known.values()]), strict=True))
    kinds = {name: finding.kind(adjusted[name]) for name, finding in known.items()}
    listed = {kind: [name for name in kinds if kinds[name] == kind] for kind in KINDS}
    parts = [f"{len(some)} {kind} ({', '.join(some)})" for kind, some in listed.items() if some]
    rows = [
        Row(
            name=reports.name, metric="findings_seen", value=len(listed["seen"]) / len(kinds), unit="rate",
            questions=len(reports.answers), patients=len(set(reports.clusters)), note="; ".join(parts),
            summary="findings that are seen",
        )
    ]  # fmt: skip
    for name, finding in known.items():
        extra = {"claim": kinds[name], "p_holm": round(adjusted[name], 6), "own_minus_blind": finding.gain}
        rows.append(Row.of(reports.name, f"own_minus_twin/{name}", finding.fall, extra=extra))
    return EvalResult.Claims(verdict=f"Of {len(kinds)} findings {', '.join(parts)}.", rows=tuple(rows))


def _measured(name: str, reports: "ReportResult", blind: Results, removed: Results) -> Finding | None:
    """Measure one finding; None without a twin, or without a patient who is known not to have it."""
    own = _affirmed(name, [reports])
    patients = {answer.prompt_id: answer.cluster for answer in reports.answers}
    have = [answer.prompt_id for answer in reports.answers if name in answer.present]
    lack = [answer.prompt_id for answer in reports.answers if name in answer.absent]
    without = {condition: _affirmed(name, some, removed=name) for condition, some in removed.items()}
    twin = next((item for item in SAME_PATIENT if without.get(item)), None)
    if twin is None or not lack:
        return None
    falls = {
        item: [own[key] - rate for key, rate in rates.items()] for item, rates in without.items() if rates
    }
    owners = [patients[key] for key in without[twin]]
    gain = min(
        (_apart(own, have, lack) - _apart(_affirmed(name, some), have, lack)) / 2 for some in blind.values()
    )
    is_above = gain > 0 and all(statistics.fmean(values) > 0 for values in falls.values())
    first = {answer.prompt_id: {*answer.affirmed} & {*answer.present} - {name} for answer in reports.answers}
    lost = [
        (len(first[answer.prompt_id] - {*answer.affirmed}), len(first[answer.prompt_id]))
        for result in removed[twin]
        for answer in result.answers
        if answer.removed == name
    ]
    others = sum(count for _, count in lost)
    return Finding(
        gain=gain,
        fall=paired_interval(falls[twin], [0.0] * len(owners), owners),
        p=difference_p(falls[twin], owners) if is_above else 1.0,
        apart=_apart(own, have, lack),
        left=_minus(_rate(without[twin], patients), _rate({key: own[key] for key in lack}, patients)),
        others_lost=sum(count for count, _ in lost) / others if others else 0.0,
    )


def _affirmed(name: str, results: Sequence["ReportResult"], removed: str | None = None) -> Rates:
    """Return how often a finding is affirmed, over showings without `removed` if one is named."""
    every: dict[str, list[float]] = {}
    for answer in (answer for result in results for answer in result.answers if answer.removed == removed):
        every.setdefault(answer.prompt_id, []).append(float(name in answer.affirmed))
    return {key: statistics.fmean(values) for key, values in every.items()}


def _apart(rates: Rates, have: Sequence[str], lack: Sequence[str]) -> float:
    """Return how much more often a finding is affirmed where it is: Youden's J."""
    return statistics.fmean(rates[key] for key in have) - statistics.fmean(rates[key] for key in lack)


def _rate(rates: Rates, patients: Mapping[str, Hashable]) -> Rate:
    """Return a share of patients with Wilson's interval, which holds at few and near 0 and 1 too."""
    by_patient: dict[Hashable, list[float]] = {}
    for key, value in rates.items():
        by_patient.setdefault(patients[key], []).append(value)
    count, share = len(by_patient), statistics.fmean(map(statistics.fmean, by_patient.values()))
    z = statistics.NormalDist().inv_cdf(1 - SIGNIFICANT / 2)
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * (share * (1 - share) / count + z * z / (4 * count * count)) ** 0.5
    return share, max(0.0, middle - half), min(1.0, middle + half)


def _minus(first: Rate, second: Rate) -> tuple[float, float]:
    """Return the ends of a difference of two shares of other patients (Newcombe 1998, method 10)."""
    (one, low, high), (other, least, most) = first, second
    below, above = math.hypot(one - low, most - other), math.hypot(high - one, other - least)
    return one - other - below, one - other + above
