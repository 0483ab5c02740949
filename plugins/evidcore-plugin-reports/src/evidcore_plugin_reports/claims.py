"""What an audit may claim of each finding of written reports: is it seen?

Three rates decide: how often reports affirm a finding of patients who have it, of patients who do not, and of
those who have it over a showing without it (a twin). It is seen where it is told apart better than by
anything that does not look, and leaves the report when it leaves the scan, while the others stay. What then
is still affirmed more often than of patients who do not have it was read from something else in the scan.
"""

import dataclasses
import statistics
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from evidcore.api import EvalResult, Row, paired_interval
from evidcore.contracts.evaluating import Interval
from evidcore.evaluate.bootstrap import difference_p, holm

if TYPE_CHECKING:
    from evidcore_plugin_reports.evaluation import ReportAnswer, ReportResult

SAME_PATIENT = ("twin", "occluded")  # showings that change nothing but the finding
HALF = 0.5  # of what is told apart: more read elsewhere, or lost of other findings, is no sight
LITTLE = 0.25  # a finding that leaves fewer reports than this when it leaves the scan is not seen
KINDS = ("seen", "seen in part", "seen in whole or in part", "not seen", "not settled")
SIGNIFICANT = 0.05


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difference:
    """Own reports minus another showing's or a rule's, of one finding."""

    against: str
    above: Interval
    p: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """What was measured of one finding."""

    gains: tuple[Difference, ...]  # own minus each that does not look, in balanced accuracy
    falls: tuple[Difference, ...]  # own minus each showing without it, in the rate at which it is affirmed
    apart: float  # the rates at which own reports affirm it: where it is minus where it is not
    left: tuple[float, float] | None  # ends of the rate over twins minus where it is not; None without twins
    others_lost: float  # share of the other findings that leave reports with it

    @property
    def p(self) -> float:
        """Return the p value of no fall over twins; 1 without them, or where something else is not above 0.

        Words and priors are those of the own report, so what falls over a twin was read in the scan.
        """
        if self.left is None or any(item.above.value <= 0 for item in (*self.gains, *self.falls)):
            return 1.0
        return max(item.p for item in self.falls if item.against in SAME_PATIENT)

    def kind(self, p: float) -> str:
        """Return what may be claimed, given the p value that counts how many findings were tried."""
        if self.left is not None and p < SIGNIFICANT and self.others_lost <= HALF:
            low, high = self.left
            if low > 0:
                return "seen in part"
            return "seen" if high <= HALF * self.apart else "seen in whole or in part"
        ends = [_high(item.above) for item in (self.falls or self.gains)]
        return "not seen" if any(high is not None and high < LITTLE for high in ends) else "not settled"


def claims(
    reports: "ReportResult",
    blind: Mapping[str, Sequence["ReportResult"]],
    removed: Mapping[str, Sequence["ReportResult"]],
) -> EvalResult.Claims | None:
    """Return what may be claimed of each finding that some of the patients have and some have not.

    Args:
        reports: reports over the cases' own volumes.
        blind: by name, reports of rules and over showings in which nothing can be seen.
        removed: by the condition's name, reports over showings without one finding each.
    """
    names = sorted({name for answer in reports.answers for name in answer.present})
    measured = {name: finding for name in names if (finding := _measured(name, reports, blind, removed))}
    if not measured:
        return None
    adjusted = holm([finding.p for finding in measured.values()])
    kinds = {name: finding.kind(p) for (name, finding), p in zip(measured.items(), adjusted, strict=True)}
    parts = []
    for kind in KINDS:
        if some := [name for name in kinds if kinds[name] == kind]:
            parts.append(f"{len(some)} {kind} ({', '.join(some)})")
    share = list(kinds.values()).count("seen") / len(kinds)
    rows = [
        Row(
            name=reports.name, metric="findings_seen", value=share, unit="rate", note="; ".join(parts),
            questions=len(reports.answers), patients=len(set(reports.clusters)),
            summary="findings that are seen",
        )
    ]  # fmt: skip
    for (name, finding), p in zip(measured.items(), adjusted, strict=True):
        worst = min(finding.gains, key=lambda item: item.above.value)
        differences = {"blind": (worst, "balanced accuracy")}
        differences |= {fall.against: (fall, "share that affirms it") for fall in finding.falls}
        for against, (item, of) in differences.items():
            extra = {"p_holm": round(p, 6), "of": of, "against": item.against}
            metric = f"own_minus_{against.replace('-', '_')}/{name}"
            rows.append(Row.of(reports.name, metric, item.above, note=kinds[name], extra=extra))
    return EvalResult.Claims(verdict=f"Of {len(kinds)} findings {', '.join(parts)}.", rows=tuple(rows))


def _measured(
    name: str,
    reports: "ReportResult",
    blind: Mapping[str, Sequence["ReportResult"]],
    removed: Mapping[str, Sequence["ReportResult"]],
) -> Finding | None:
    """Measure one finding; None where no patient is known to be without it."""
    mine = _affirmed(name, [reports])
    patients = {answer.prompt_id: answer.cluster for answer in reports.answers}
    have = [answer.prompt_id for answer in reports.answers if name in answer.present]
    lack = [answer.prompt_id for answer in reports.answers if name in answer.absent]
    if not lack:
        return None
    # so weighted, the mean over both is the difference in balanced accuracy
    weights = dict.fromkeys(have, 0.5 / len(have)) | dict.fromkeys(lack, -0.5 / len(lack))
    gains = [
        _difference(
            against,
            {key: weight * len(weights) * (mine[key] - theirs[key]) for key, weight in weights.items()},
            patients,
        )
        for against, theirs in ((other, _affirmed(name, some)) for other, some in blind.items())
    ]
    falls, left, lost = [], None, 0.0
    of_absent = _rate([(mine[key], patients[key]) for key in lack])
    for against, some in removed.items():
        theirs = _affirmed(name, some, removed=name)
        if not theirs:
            continue
        falls.append(
            _difference(against, {key: mine[key] - value for key, value in theirs.items()}, patients)
        )
        if against in SAME_PATIENT and left is None:
            without = _rate([(value, patients[key]) for key, value in theirs.items()])
            left = _minus(without, of_absent)
            lost = _others_lost(name, reports, some)
    apart = statistics.fmean(mine[key] for key in have) - of_absent[0]
    return Finding(gains=tuple(gains), falls=tuple(falls), apart=apart, left=left, others_lost=lost)


def _affirmed(name: str, results: Sequence["ReportResult"], removed: str | None = None) -> dict[str, float]:
    """Return how often a finding is affirmed by prompt, over showings without `removed` if one is named."""
    every: dict[str, list[float]] = {}
    for answer in _answers(results, removed):
        every.setdefault(answer.prompt_id, []).append(float(name in answer.affirmed))
    return {key: statistics.fmean(values) for key, values in every.items()}


def _answers(results: Sequence["ReportResult"], removed: str | None) -> Iterable["ReportAnswer"]:
    return (answer for result in results for answer in result.answers if answer.removed == removed)


def _others_lost(name: str, reports: "ReportResult", without: Sequence["ReportResult"]) -> float:
    """Return which share of the other findings that reports affirm rightly they lose over a twin."""
    first = {answer.prompt_id: {*answer.affirmed} & {*answer.present} - {name} for answer in reports.answers}
    pairs = [(first[answer.prompt_id], {*answer.affirmed}) for answer in _answers(without, name)]
    count = sum(len(others) for others, _ in pairs)
    return sum(len(others - still) for others, still in pairs) / count if count else 0.0


def _difference(against: str, values: Mapping[str, float], patients: Mapping[str, Hashable]) -> Difference:
    owners, some = [patients[key] for key in values], [*values.values()]
    above = paired_interval(some, [0.0] * len(some), owners)
    return Difference(against=against, above=above, p=difference_p(some, owners))


Rate = tuple[float, float, float]  # a share, and the ends of its interval


def _rate(values: Sequence[tuple[float, Hashable]]) -> Rate:
    """Return a share of patients with Wilson's interval, which holds at few and near 0 and 1 too."""
    from scipy import stats

    by_patient: dict[Hashable, list[float]] = {}
    for value, patient in values:
        by_patient.setdefault(patient, []).append(value)
    count, share = len(by_patient), statistics.fmean(map(statistics.fmean, by_patient.values()))
    z = float(stats.norm.ppf(1 - SIGNIFICANT / 2))
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * (share * (1 - share) / count + z * z / (4 * count * count)) ** 0.5
    return share, max(0.0, middle - half), min(1.0, middle + half)


def _minus(first: Rate, second: Rate) -> tuple[float, float]:
    """Return the ends of a difference of two shares of other patients (Newcombe 1998, method 10)."""
    (one, low, high), (other, least, most) = first, second
    gap = one - other
    return (
        gap - ((one - low) ** 2 + (most - other) ** 2) ** 0.5,
        gap + ((high - one) ** 2 + (other - least) ** 2) ** 0.5,
    )


def _high(interval: Interval) -> float | None:
    return interval.value if interval.is_tied else interval.high
