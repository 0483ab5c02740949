"""Agreement of two texts in 0 to 1: of the findings that they affirm, or as a reward model judges it."""

import dataclasses
import math
import re
from collections.abc import Collection, Iterable
from typing import Any

from evidcore.api import Finding, Score
from evidcore.case import State
from evidcore_plugin_reports.findings import RULES

NORMAL = re.compile(RULES["said"]["normal"], re.IGNORECASE)


def is_read(text: str, findings: Iterable[Finding]) -> bool:
    """Tell whether anything of an English text was read: a finding, in any state, or that all is normal.

    A text of which nothing is read affirms no finding, and denies none: it agrees with nothing.
    """
    return bool(tuple(findings)) or NORMAL.search(text) is not None


@dataclasses.dataclass(frozen=True)
class Agreement:
    """Which findings two sources agree on."""

    both: tuple[str, ...]  # affirmed by both
    extra: tuple[str, ...]  # affirmed by the candidate alone
    missed: tuple[str, ...]  # affirmed by the reference alone

    @property
    def f1(self) -> float:
        """Return 2·both / (2·both + extra + missed); 1 where neither affirms anything."""
        wrong = len(self.extra) + len(self.missed)
        return 2 * len(self.both) / (2 * len(self.both) + wrong) if self.both or wrong else 1.0

    def score(self) -> Score:
        """Return F1 as a reward's verdict, with counts and the names that differ."""
        reasons = [
            f"{label}: {', '.join(names)}"
            for label, names in (("both", self.both), ("extra", self.extra), ("missed", self.missed))
            if names
        ]
        parts = {"both": len(self.both), "extra": len(self.extra), "missed": len(self.missed)}
        return Score(value=self.f1, parts=parts, reason="; ".join(reasons) or "neither affirms any finding")


def states(findings: Iterable[Finding]) -> dict[str, State]:
    """Return one state per finding; present wins over uncertain, and uncertain over absent."""
    strength: dict[State, int] = {"absent": 0, "uncertain": 1, "present": 2}
    merged: dict[str, State] = {}
    for item in findings:
        if item.name not in merged or strength[item.state] > strength[merged[item.name]]:
            merged[item.name] = item.state
    return merged


def affirmed(findings: Iterable[Finding]) -> tuple[str, ...]:
    """Return the names of the findings that are present, once each, in the order of first mention."""
    return tuple(name for name, state in states(findings).items() if state == "present")


def compare_findings(
    candidate: Iterable[Finding],
    reference: Iterable[Finding],
    *,
    known_only: bool = False,
    spoken_only: bool = False,
    details: Collection[str] = (),
) -> Agreement:
    """Compare what two sources affirm.

    What a source does not speak of counts as not affirmed. What the reference is uncertain of is left out.

    Args:
        candidate: findings of the text that is judged.
        reference: findings it is judged against.
        known_only: leave out what the reference does not speak of.
        spoken_only: leave out what the candidate does not speak of.
        details: what must agree too, of `DETAILS`, where the reference knows it; a finding on the wrong side
            is extra and missed.
    """
    candidate, reference = list(candidate), list(reference)
    ours, theirs = states(candidate), states(reference)
    names = [
        name
        for name in dict.fromkeys([*theirs, *ours])
        if theirs.get(name) != "uncertain"
        and not (known_only and name not in theirs)
        and not (spoken_only and name not in ours)
    ]
    said = {name for name in names if ours.get(name) == "present"}
    true = {name for name in names if theirs.get(name) == "present"}
    agreed = compare_details(candidate, reference) if details else {}
    wrong = {name for name in said & true if not all(agreed.get(name, {}).get(key, True) for key in details)}
    return Agreement(
        both=tuple(name for name in names if name in (said & true) - wrong),
        extra=tuple(name for name in names if name in (said - true) | wrong),
        missed=tuple(name for name in names if name in (true - said) | wrong),
    )


DETAILS = ("side", "malignant", "location")


def compare_details(candidate: Iterable[Finding], reference: Iterable[Finding]) -> dict[str, dict[str, bool]]:
    """Tell of each finding that both affirm whether the candidate gives the details that the reference knows.

    A detail that the candidate does not give, or gives in two ways, is not agreed on.

    Returns:
        By finding, then by name of the detail; what the reference does not know is left out.
    """
    ours, theirs = _details(candidate), _details(reference)
    return {
        name: {key: ours[name][key] == value for key, value in known.items() if value is not None}
        for name, known in theirs.items()
        if name in ours
    }


def _details(findings: Iterable[Finding]) -> dict[str, dict[str, Any]]:
    """Return the details of each finding that is affirmed, over all its mentions; left and right are both."""
    said: dict[str, list[Finding]] = {}
    for item in findings:
        if item.state == "present":
            said.setdefault(item.name, []).append(item)
    result: dict[str, dict[str, Any]] = {}
    for name, items in said.items():
        each = {key: {getattr(item, key) for item in items} - {None} for key in DETAILS}
        result[name] = {key: next(iter(some)) if len(some) == 1 else None for key, some in each.items()}
        if len(each["side"]) > 1:
            result[name]["side"] = "both"
    return result


def as_agreement(raw: float) -> float:
    """Return 1 / (1 + exp(-raw)): a raw score of 0, which says neither yes nor no, is 0.5."""
    return 1.0 / (1.0 + math.exp(-raw)) if raw >= 0 else math.exp(raw) / (1.0 + math.exp(raw))
