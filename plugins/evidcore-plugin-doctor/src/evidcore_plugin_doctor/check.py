"""Every fault of every case of a data set in one run; nothing stops at the first.

1. Tables: rows and cells that cannot be read, ids given twice, patients in two splits.
2. Files, one case after the other, in worker processes: each volume is read once.
3. The set as a whole: masks that no case has, copies of volumes, copies of reports.
"""

from __future__ import annotations

import collections
import dataclasses
import time
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, get_args

from evidcore.case import Case, Split
from evidcore.contracts import Dataset
from evidcore.errors import DataError
from evidcore.registry import blame
from evidcore.registry.factory import offer_of
from evidcore_plugin_doctor import texts
from evidcore_plugin_doctor.copies import Copies, Owner
from evidcore_plugin_doctor.fault import Fault
from evidcore_plugin_doctor.looking import Files, Looked, look
from evidcore_plugin_doctor.rendering import Rendering
from evidcore_plugin_doctor.workers import in_processes

Listed = tuple[Split, Case]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Summary:
    """What a check looked at and how much it found."""

    cases: Mapping[str, int]  # by split
    patients: int | None  # None where they are not known
    volumes: int
    masks: int
    reports: int
    errors: Mapping[str, int]  # by check
    warnings: Mapping[str, int]
    relatives: int  # copies of a patient's volumes within a split: other reconstructions, no fault
    templates: int  # report texts that many patients share: no fault
    seconds: float

    def record(self) -> dict[str, Any]:
        """Return the JSON form."""
        return dataclasses.asdict(self)


def check(
    dataset: Dataset,
    name: str,
    *,
    processes: int,
    told: Callable[[Fault], None],
    done: Callable[[int, int], None],
) -> Summary:
    """Look at every case that `dataset` lists.

    Args:
        dataset: as built by the factory.
        name: what messages call it.
        processes: how many read volumes at once.
        told: is given each fault as soon as it is known.
        done: is given how many cases are looked at, and of how many.

    Raises:
        DataError: if the set's table as a whole cannot be read, or lists no case.
    """
    cases, unlisted = list_cases(dataset, name)
    return check_listed(cases, unlisted, processes=processes, told=told, done=done)


def list_cases(dataset: Dataset, name: str) -> tuple[list[Listed], list[str]]:
    """Return every case that `dataset` lists, and a message for each row and cell that is none.

    Raises:
        DataError: if the set's table as a whole cannot be read, or lists no case.
    """
    with blame(offer_of(dataset), f"listing the cases of {name}"):
        cases = [(split, case) for split in get_args(Split) for case in dataset.listed(split)]
        unlisted = list(dataset.unlisted())
    if not cases and not unlisted:
        raise DataError(f"dataset {name!r}: lists no case in any split. Check its options and files.")
    return cases, unlisted


def check_listed(
    cases: Sequence[Listed],
    unlisted: Sequence[str],
    *,
    processes: int,
    told: Callable[[Fault], None],
    done: Callable[[int, int], None],
    chosen: Sequence[Listed] | None = None,
    rendering: Rendering | None = None,
    seen: Callable[[Looked], None] = lambda looked: None,
) -> Summary:
    """Look at listed cases.

    Args:
        cases: all that the set lists.
        unlisted: what of the set is no case.
        processes: how many read volumes at once.
        told: is given each fault as soon as it is known.
        done: is given how many cases are looked at, and of how many.
        chosen: the cases whose files are read; None for all.
        rendering: how the volumes are drawn while they are in memory; None for no pictures.
        seen: is given what was seen of each chosen case, in order.
    """
    chosen = cases if chosen is None else chosen
    began = time.monotonic()
    counts: dict[str, collections.Counter[str]] = {
        "error": collections.Counter(),
        "warning": collections.Counter(),
    }

    def tell(fault: Fault) -> None:
        counts[fault.severity][fault.check] += 1
        told(fault)

    for message in unlisted:
        tell(Fault(check="table", severity="error", case="", file="", text=message))
    for fault in (*_twice(cases), *_shared_patients(cases), *_spelt_alike(cases)):
        tell(fault)
    voxels: dict[str, list[int]] = collections.defaultdict(list)
    volumes = 0
    with Copies() as copies:
        pairs = zip(chosen, _looked(chosen, processes, rendering), strict=True)
        for number, ((split, case), looked) in enumerate(pairs, 1):
            seen(looked)
            for fault in looked.faults:
                tell(fault)
            for found in looked.prints:
                copies.add(Owner(case=case.id, patient=case.patient, split=split), found)
            for mask, count in looked.mask_voxels.items():
                voxels[mask].append(count)
            volumes += len(looked.prints)
            done(number, len(chosen))
        for fault in _nowhere(voxels):
            tell(fault)
        for fault in copies.faults():
            tell(fault)
        relatives = copies.relatives
    reports = [(split, case) for split, case in cases if case.report]
    compared = texts.compare(
        [case.report.text for _, case in reports if case.report], [_patient(case) for _, case in reports]
    )
    for alike in compared.alike:
        tell(_copied_report(alike, reports))
    return Summary(
        cases=dict(collections.Counter(split for split, _ in cases)),
        patients=len({case.patient for _, case in cases} - {None}) or None,
        volumes=volumes,
        masks=sum(len(counts) for counts in voxels.values()),
        reports=len(reports),
        errors=dict(counts["error"]),
        warnings=dict(counts["warning"]),
        relatives=relatives,
        templates=compared.templates,
        seconds=time.monotonic() - began,
    )


def _patient(case: Case) -> str:
    return case.patient if case.patient is not None else f"case {case.id}"


def _twice(cases: Sequence[Listed]) -> Iterator[Fault]:
    """Yield the ids that stand twice."""
    first: dict[str, Split] = {}
    for split, case in cases:
        if case.id in first:
            text = f"the id stands in {first[case.id]} already, again in {split}. Give each case its own."
            yield Fault(check="id", severity="error", case=case.id, file="", text=text)
        first.setdefault(case.id, split)


def _shared_patients(cases: Sequence[Listed]) -> Iterator[Fault]:
    """Yield the patients that are in two splits."""
    home: dict[str, Listed] = {}
    told: set[tuple[str, Split]] = set()
    for split, case in cases:
        if case.patient is None:
            continue
        other_split, other = home.setdefault(case.patient, (split, case))
        if split != other_split and (case.patient, split) not in told:
            told.add((case.patient, split))
            text = (
                f"patient {case.patient!r} is in {split} and, with case {other.id!r}, in {other_split}. "
                f"Move one of them: a patient may be in one split only."
            )
            yield Fault(check="split", severity="error", case=case.id, file="", text=text)


def _spelt_alike(cases: Sequence[Listed]) -> Iterator[Fault]:
    """Yield the patients and ids of two splits that differ in case, Unicode form or blanks alone."""
    for what in ("patient", "id"):
        home: dict[str, tuple[str, Listed]] = {}  # as compared -> as first written, and where
        told: set[tuple[str, Split]] = set()
        for split, case in cases:
            name = case.patient if what == "patient" else case.id
            if name is None:
                continue
            first, (other_split, other) = home.setdefault(folded(name), (name, (split, case)))
            if name != first and split != other_split and (name, split) not in told:
                told.add((name, split))
                text = (
                    f"{what} {name!a} is in {split} and, with case {other.id!a}, {first!a} in "
                    f"{other_split}: they differ in case, Unicode form or blanks alone. Write a {what} in "
                    "one way, or rename one if they are two."
                )
                yield Fault(check="split", severity="warning", case=case.id, file="", text=text)


def folded(name: str) -> str:
    """Return what is left of a name without case, blanks, invisible characters and its form in Unicode."""
    plain = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
    return "".join(sign for sign in plain if unicodedata.category(sign) not in {"Zs", "Cf", "Cc"})


def _nowhere(voxels: Mapping[str, Sequence[int]]) -> Iterator[Fault]:
    """Yield the masks that are empty in every case."""
    for mask, counts in voxels.items():
        if len(counts) > 1 and not any(counts):
            text = (
                f"mask {mask!r} is empty in all {len(counts)} cases that name it. Check its label, "
                f"key or file pattern."
            )
            yield Fault(check="mask", severity="error", case="", file="", text=text)


def _copied_report(alike: texts.Alike, reports: Sequence[Listed]) -> Fault:
    (split, case), (other_split, other) = reports[alike.second], reports[alike.first]
    how = "is word for word that" if alike.share == 1 else f"is {100 * alike.share:.0f} % that"
    where = f" in {other_split}, this one in {split}" if split != other_split else ""
    return Fault(
        check="report",
        severity="error" if split != other_split else "warning",
        case=case.id,
        file="",
        text=f"its report ({alike.words} words) {how} of case {other.id!r}, another patient{where}. "
        f"Look whether it belongs to this scan, and drop one of them otherwise.",
    )


def _looked(cases: Sequence[Listed], processes: int, rendering: Rendering | None) -> Iterator[Looked]:
    """Return what is seen of each case, in order."""
    processes = min(processes, len(cases)) or 1
    files = [Files.of(case, processes, rendering) for _, case in cases]
    killed = "data check: a worker process was killed, perhaps for memory. Try again with --processes 1."
    return in_processes(look, files, processes, killed)
