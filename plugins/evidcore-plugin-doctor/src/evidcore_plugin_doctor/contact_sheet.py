"""What a contact sheet holds: cases of a data set with their pictures and faults, and the set in numbers."""

from __future__ import annotations

import collections
import dataclasses
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from evidcore.case import Case, Finding, Split
from evidcore.contracts import Dataset
from evidcore.errors import DataError, did_you_mean
from evidcore_plugin_doctor.check import Listed, Summary, check_listed, list_cases
from evidcore_plugin_doctor.fault import CHECKS, Fault
from evidcore_plugin_doctor.looking import Looked
from evidcore_plugin_doctor.rendering import MOST_PICTURES, Picture, Rendering
from evidcore_plugin_doctor.sentences import quantiles

MOST_ITEMS = 60  # of a list of a case


@dataclasses.dataclass(frozen=True, kw_only=True)
class Filters:
    """Which cases are wanted.

    Args:
        limit: at most so many are shown, evenly spaced in the order of the set.
        splits: of these splits; all where there is none.
        ids: of these names; all where there is none.
        finding: with this finding present, or with a mask of this name.
    """

    limit: int
    splits: tuple[Split, ...] = ()
    ids: tuple[str, ...] = ()
    finding: str | None = None

    def accept(self, split: Split, case: Case) -> bool:
        """Tell whether a case is wanted."""
        return (
            (not self.splits or split in self.splits)
            and (not self.ids or case.id in self.ids)
            and (self.finding is None or self.finding in names_shown(case))
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """One case of the sheet."""

    split: Split
    case: Case
    faults: tuple[Fault, ...]
    pictures: tuple[Picture, ...]  # of the volumes that could be read

    def names(self) -> tuple[str, ...]:
        """Return what the case is found by."""
        return names_shown(self.case)[:MOST_ITEMS]

    def checks(self) -> list[str]:
        """Return the kinds of its faults."""
        return sorted({fault.check for fault in self.faults})

    def known(self) -> list[tuple[str, str]]:
        """Return its findings by their state."""
        by_state = {
            state: ", ".join(_said(one) for one in self.case.findings if one.state == state)
            for state in ("present", "uncertain", "absent")
        }
        return [(state, found) for state, found in by_state.items() if found]

    def asked(self) -> list[dict[str, Any]]:
        """Return its questions, each with its options and which is right, or with what answers it."""
        letters = string.ascii_uppercase
        chosen = [
            {
                "text": one.text,
                "options": [
                    (f"{letters[index % len(letters)]}) ", option, index == one.answer)
                    for index, option in enumerate(one.options)
                ],
            }
            for one in self.case.questions
        ]
        masks = [{"text": one.text, "said": "masks: ", "names": one.masks} for one in self.case.queries]
        free = [
            {"text": one["text"], "said": "", "names": one["answers"]}
            for one in self.case.notes.get("open_questions", ())
        ]
        return [*chosen, *masks, *free]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sheet:
    """A data set as far as it was looked at."""

    name: str
    entries: tuple[Entry, ...]
    matching: int  # cases that the filters accept
    other_faults: tuple[Fault, ...]  # of no case on the sheet
    findings: Mapping[str, Mapping[str, int]]  # of all cases: name -> state -> count
    summary: Summary  # tables and reports of all cases, files of those on the sheet

    def facts(self) -> list[tuple[str, object]]:
        """Return how much there is of what."""
        found = self.summary
        return [
            *((split, f"{count} cases") for split, count in found.cases.items()),
            ("patients", "not known" if found.patients is None else found.patients),
            ("looked at", f"{len(self.entries)} of {sum(found.cases.values())} cases"),
            ("volumes read", found.volumes), ("masks read", found.masks), ("reports", found.reports),
        ]  # fmt: skip

    def faults_by_check(self) -> list[tuple[str, int, int]]:
        """Return each kind of fault that was found with its errors and warnings."""
        errors, warnings = self.summary.errors, self.summary.warnings
        return [
            (check, errors.get(check, 0), warnings.get(check, 0))
            for check in CHECKS
            if check in errors or check in warnings
        ]

    def ranked_findings(self) -> list[tuple[str, Mapping[str, int]]]:
        """Return the findings of the set, the most frequent first."""
        return sorted(self.findings.items(), key=lambda item: -item[1].get("present", 0))

    def left_out(self) -> dict[str, Any] | None:
        """Return how many cases are not on the sheet, and why; None where all are."""
        total, shown = sum(self.summary.cases.values()), len(self.entries)
        why = [f"{total - self.matching} do not match the filters"] if total > self.matching else []
        if self.matching > shown:
            why.append(f"{self.matching - shown} are beyond the limit, those shown are evenly spaced")
        return {"name": self.name, "absent": total - shown, "total": total, "why": why} if why else None

    def record(self) -> dict[str, Any]:
        """Return the sheet in numbers: no id of a case or patient, and no text."""
        return {
            **self.summary.record(),
            "matching": self.matching,
            "shown": len(self.entries),
            "findings": {name: dict(states) for name, states in self.findings.items()},
            "distributions": self.distributions(),
            "shown_cases": [_numbers(entry) for entry in self.entries],
        }

    def distributions(self) -> dict[str, dict[str, dict[str, float] | None]]:
        """Return quantiles over the volumes of the sheet: what is measured -> split -> quantile -> value."""
        measured: dict[str, dict[str, list[float]]] = collections.defaultdict(
            lambda: collections.defaultdict(list)
        )
        for entry in self.entries:
            for picture in entry.pictures:
                for what, value in _measures(picture):
                    measured[what][entry.split].append(value)
        return {
            what: {split: quantiles(values) for split, values in by_split.items()}
            for what, by_split in measured.items()
        }

    def histograms(self) -> dict[str, list[float]]:
        """Return how densely values in HU lie by split, each volume counting alike; 1 is an even spread."""
        held: dict[str, list[tuple[float, ...]]] = collections.defaultdict(list)
        for entry in self.entries:
            held[entry.split] += [picture.histogram for picture in entry.pictures if picture.histogram]
        return {
            split: (np.mean(shares, axis=0) * len(shares[0])).tolist()
            for split, shares in held.items()
            if shares
        }


def gather(
    dataset: Dataset,
    name: str,
    filters: Filters,
    *,
    pictures_bytes: int,
    processes: int,
    done: Callable[[int, int], None],
) -> Sheet:
    """Look at the cases that are wanted, each volume being read once for its faults and its picture.

    Args:
        dataset: as built by the factory.
        name: what messages call it.
        filters: which cases.
        pictures_bytes: what all pictures may take; they become coarser to fit.
        processes: how many read volumes at once.
        done: is given how many cases are looked at, and of how many.

    Raises:
        DataError: if the set's table as a whole cannot be read, or no case is accepted.
    """
    cases, unlisted = list_cases(dataset, name)
    accepted = [(split, case) for split, case in cases if filters.accept(split, case)]
    if cases and not accepted:
        raise _nothing(name, cases, filters)
    places = np.linspace(0, len(accepted) - 1, min(len(accepted), filters.limit)).round().astype(int)
    chosen = [accepted[place] for place in places]
    pictures = sum(min(len(case.volumes), MOST_PICTURES) for _, case in chosen)
    faults: list[Fault] = []
    looked: list[Looked] = []
    summary = check_listed(
        cases,
        unlisted,
        processes=processes,
        told=faults.append,
        done=done,
        chosen=chosen,
        rendering=Rendering(most_bytes=pictures_bytes // max(1, pictures), finding=filters.finding),
        seen=looked.append,
    )
    of_case: dict[str, list[Fault]] = collections.defaultdict(list)
    for fault in faults:
        of_case[fault.case].append(fault)
    ids = {case.id for _, case in chosen}
    return Sheet(
        name=name,
        entries=tuple(
            Entry(split=split, case=case, faults=tuple(of_case[case.id]), pictures=seen.pictures)
            for (split, case), seen in zip(chosen, looked, strict=True)
        ),
        matching=len(accepted),
        other_faults=tuple(fault for fault in faults if fault.case not in ids),
        findings=_counted(cases),
        summary=summary,
    )


def names_shown(case: Case) -> tuple[str, ...]:
    """Return what a case is found by: findings that are present, then masks."""
    return tuple(dict.fromkeys((*case.present(), *case.masks)))


def _said(finding: Finding) -> str:
    """Return a finding with what is known of it."""
    known = [
        finding.side or "",
        "" if finding.size_mm is None else f"{finding.size_mm:.4g} mm",
        finding.location or "",
        "" if finding.malignant is None else "malignant" if finding.malignant else "benign",
    ]
    known = [one for one in known if one]
    return f"{finding.name} ({', '.join(known)})" if known else finding.name


def _counted(cases: Sequence[Listed]) -> dict[str, dict[str, int]]:
    found: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for _, case in cases:
        for finding in case.findings:
            found[finding.name][finding.state] += 1
    return {name: dict(states) for name, states in found.items()}


def _nothing(name: str, cases: Sequence[Listed], filters: Filters) -> DataError:
    """Say which filter accepts nothing."""
    known = {case.id for _, case in cases}
    for wanted in filters.ids:
        if wanted not in known:
            return DataError(
                f"dataset {name!r}: has no case {wanted!r}.{did_you_mean(wanted, sorted(known))} "
                f"It lists {len(cases)} cases. Correct --case."
            )
    shown = {item for _, case in cases for item in names_shown(case)}
    if filters.finding is not None and filters.finding not in shown:
        return DataError(
            f"dataset {name!r}: no case shows {filters.finding!r}, as a finding or a mask."
            f"{did_you_mean(filters.finding, sorted(shown))} Correct --finding."
        )
    return DataError(
        f"dataset {name!r}: none of its {len(cases)} cases is accepted by --split, --case and --finding "
        f"together. Drop one of them."
    )


def _measures(picture: Picture) -> Iterator[tuple[str, float]]:
    """Yield what is measured of a volume, with its value."""
    for axis, step in zip("zyx", picture.spacing_mm_zyx, strict=True):
        yield f"spacing {axis}, mm", step
    unit = "HU" if picture.intensity == "hu" else "as stored"
    for quantile in ("1 %", "50 %", "99 %"):
        yield f"values at {quantile} of a volume, {unit}", picture.values[quantile]


def _numbers(entry: Entry) -> dict[str, Any]:
    case = entry.case
    return {
        "split": entry.split,
        "volumes": [
            {
                "shape_zyx": picture.shape_zyx,
                "spacing_mm_zyx": picture.spacing_mm_zyx,
                "axes": picture.axes,
                "values": dict(picture.values),
            }
            for picture in entry.pictures
        ],
        "masks": len(case.masks),
        "present": len(case.present()),
        "questions": len(case.questions),
        "queries": len(case.queries),
        "report_characters": len(case.report.text) if case.report else None,
        "faults": dict(collections.Counter(fault.check for fault in entry.faults)),
    }
