"""Every fault of every case of a data set in one run; nothing stops at the first.

1. Tables: rows and cells that cannot be read, ids given twice, patients in two splits.
2. Files, one case after the other, in worker processes: each volume is read once.
3. The set as a whole: masks that no case has, copies of volumes, copies of reports.
"""

import collections
import dataclasses
import functools
import itertools
import re
import tempfile
import time
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from evidcore.api import Case, DataError, Dataset
from evidcore.case import Split
from evidcore.registry import blame
from evidcore.registry.factory import offer_of
from evidcore_plugin_doctor import statements
from evidcore_plugin_doctor.fault import Fault, Severity
from evidcore_plugin_doctor.inspection import Inspected, inspect
from evidcore_plugin_doctor.likeness import Copy, Library, copied_volumes
from evidcore_plugin_doctor.masks import misnumbered
from evidcore_plugin_doctor.rendering import Rendering
from evidcore_plugin_doctor.workers import in_processes

Listed = tuple[Split, Case]
RUN_WORDS = 5
RARE_RUNS = 10  # that two reports share and fewer than TEMPLATE_PATIENTS patients have
ALIKE = 0.8  # Jaccard: runs in both over runs in either
TEMPLATE_PATIENTS = 5  # as many share a template
_COMMON = 20  # runs that more reports hold point to no pair


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


def check(
    cases: Sequence[Listed],
    unlisted: Sequence[str],
    *,
    processes: int,
    on_fault: Callable[[Fault], None],
    progress: Callable[[int, int], None],
    chosen: Sequence[Listed] | None = None,
    rendering: Rendering | None = None,
    on_case: Callable[[Inspected], None] = lambda inspected: None,
) -> Summary:
    """Look at the cases that `list_cases` returned, and report each fault as soon as it is known.

    The files of `chosen` cases are read, of all where it is None; `on_case` is given what was seen of each,
    in order. Volumes are drawn while they are in memory where a `rendering` says how.
    """
    chosen = cases if chosen is None else chosen
    began = time.monotonic()
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    by_case: dict[str, list[Fault]] = collections.defaultdict(list)

    def add(fault: Fault) -> None:
        before = by_case[fault.case] + by_case[fault.other]
        by_case[fault.case].append(fault)
        if not fault.is_explained(before):
            counts[fault.severity][fault.check] += 1
            on_fault(fault)

    for message in unlisted:
        add(Fault(check="table", severity="error", text=message))
    for fault in _shared_names(cases):
        add(fault)
    voxels: dict[str, list[int]] = collections.defaultdict(list)
    volumes: list[Copy] = []
    late: list[Fault] = []
    labels: list[tuple[Case, str, list[int]]] = []
    patients: list[tuple[Case, str, Mapping[str, Any]]] = []
    with tempfile.TemporaryDirectory() as folder:
        library = Library(Path(folder))
        workers = min(processes, len(chosen)) or 1
        look = functools.partial(inspect, processes=workers, rendering=rendering)
        files = [statements.without_texts(case) for _, case in chosen]
        killed = "data check: a worker process was killed, perhaps for memory. Try again with --processes 1."
        inspections = in_processes(look, files, workers, killed)
        for number, ((split, case), inspected) in enumerate(zip(chosen, inspections, strict=True), 1):
            on_case(inspected)
            for fault in inspected.faults:
                late.append(fault) if fault.kind == "mask/empty" else add(fault)  # the set may hold its cause
            for volume in inspected.volumes:
                library.add(volume.structure)
                volumes.append(Copy(split, case, volume.file, volume.digest))
            for mask, count in inspected.mask_voxels.items():
                voxels[mask].append(count)
            labels += [(case, path, values) for path, values in inspected.labels.items()]
            patients += [(case, *stated) for stated in (("the table", case.notes), *inspected.headers)]
            progress(number, len(chosen))
        copied, relatives = copied_volumes(volumes, library)
    empty = [mask for mask, numbers in voxels.items() if len(numbers) > 1 and not any(numbers)]
    for mask in empty:
        text = f"mask {mask!r} is empty in all {len(voxels[mask])} cases that name it."
        add(Fault(check="mask", severity="error", text=f"{text} Check its label, key or file pattern."))
    late = [*copied, *statements.unlike_files(cases), *misnumbered(labels, empty), *late]
    negatives = statements.negatives(patients, len(volumes))
    for fault in (*late, *statements.unlike_patients(patients), *negatives):
        add(fault)
    reports = [(split, case, case.report.text) for split, case in cases if case.report]
    owners = [f"case {case.id}" if case.patient is None else case.patient for _, case, _ in reports]
    copies, templates = compare_reports([text for *_, text in reports], owners)
    for copy in copies:
        (home, other, _), (split, case, _) = reports[copy.first], reports[copy.second]
        how = "is word for word that" if copy.share == 1 else f"is {100 * copy.share:.0f} % that"
        where = f" in {home}, this one in {split}" if split != home else ""
        text = f"its report ({copy.words} words) {how} of case {other.id!r}, another patient{where}."
        text += " Look whether it belongs to this scan, and drop one of them otherwise."
        severity: Severity = "error" if split != home else "warning"
        add(Fault(check="report", severity=severity, case=case.id, other=other.id, text=text))
    for _, case in cases:
        for fault in (*statements.without_value(case), *statements.unlike_report(case)):
            add(fault)
    return Summary(
        cases=dict(collections.Counter(split for split, _ in cases)),
        patients=len({case.patient for _, case in cases} - {None}) or None,
        volumes=len(volumes),
        masks=sum(map(len, voxels.values())),
        reports=len(reports),
        errors=dict(counts["error"]),
        warnings=dict(counts["warning"]),
        relatives=relatives,
        templates=templates,
        seconds=time.monotonic() - began,
    )


def _shared_names(cases: Sequence[Listed]) -> Iterator[Fault]:
    """Yield ids given twice, and patients and ids of two splits, in another spelling too."""
    for _, (home, _), (split, case) in _repeated(cases, "id"):
        text = f"the id stands in {home} already, again in {split}. Give each case its own."
        yield Fault(check="id", severity="error", case=case.id, text=text)
    for patient, (home, other), (split, case) in _repeated(cases, "patient"):
        if split != home:
            text = f"patient {patient!r} is in {split} and, with case {other.id!r}, in {home}."
            remedy = "Move one of them: a patient may be in one split only."
            yield Fault(check="split", severity="error", case=case.id, text=f"{text} {remedy}")
    for what in ("patient", "id"):
        for name, (home, other), (split, case) in _repeated(cases, what, _folded):
            first = getattr(other, what)
            if name != first and split != home:
                why = f"{what} {name!a} is in {split} and, with case {other.id!a}, {first!a} in {home}"
                remedy = f"Write a {what} in one way, or rename one if they are two."
                text = f"{why}: they differ in case, Unicode form, blanks or zeros alone. {remedy}"
                yield Fault(check="split", severity="warning", case=case.id, text=text)


def _repeated(
    cases: Sequence[Listed], what: str, spelt: Callable[[str], str] = str
) -> Iterator[tuple[str, Listed, Listed]]:
    """Yield each name that an earlier case has, once a split, with the first case and the later one."""
    first: dict[str, Listed] = {}
    reported = set()
    for split, case in cases:
        name = getattr(case, what)
        if name is not None:
            earlier = first.setdefault(spelt(name), (split, case))
            if earlier[1] is not case and (name, split) not in reported:
                reported.add((name, split))
                yield name, earlier, (split, case)


def _folded(name: str) -> str:
    """Return a name without case, blanks, invisible characters, its form in Unicode and a number's zeros."""
    plain = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
    bare = "".join(sign for sign in plain if unicodedata.category(sign) not in {"Zs", "Cf", "Cc"})
    number = re.fullmatch(r"0*(\d+)(\.0+)?", bare)  # tables lose zeros before, and write 17 as 17.0
    return number[1] if number else bare


@dataclasses.dataclass(frozen=True, kw_only=True)
class Alike:
    """Two reports of different patients that say the same."""

    first: int
    second: int
    share: float  # of the runs of five words in either, how many are in both; 1 where all words are equal
    words: int  # of the shorter


def compare_reports(reports: Sequence[str], patients: Sequence[str]) -> tuple[list[Alike], int]:
    """Return the reports that are alike, and how many texts are shared by many patients.

    Normal findings are told in the same words again and again, so equal words alone prove nothing. What two
    reports share counts where hardly anybody else says it: runs of five words that few patients have. A text
    that many patients share is a template and no fault. Reports of one of the `patients`, whose they are, are
    not compared.
    """
    words = [tuple(re.findall(r"\w+", report.casefold())) for report in reports]
    runs = [  # by hash: the words themselves would fill the memory
        {hash(item[start : start + RUN_WORDS]) for start in range(len(item) - RUN_WORDS + 1)}
        for item in words
    ]
    holders: dict[int, list[int]] = collections.defaultdict(list)
    for number, mine in enumerate(runs):
        for run in mine:
            holders[run].append(number)
    equal: dict[tuple[str, ...], list[int]] = collections.defaultdict(list)
    for number, item in enumerate(words):
        if item:
            equal[item].append(number)
    templates = sum(len({patients[n] for n in group}) >= TEMPLATE_PATIENTS for group in equal.values())
    # every copy with the first of its text, and the pairs of first texts that share enough rare runs
    copies = {(group[0], other) for group in equal.values() for other in group[1:]}
    copied = {other for _, other in copies}
    shared: collections.Counter[tuple[int, int]] = collections.Counter()
    for numbers in holders.values():
        originals = [number for number in numbers if number not in copied]
        if 1 < len(originals) <= _COMMON:
            shared.update(itertools.combinations(originals, 2))
    alike = []
    for first, second in sorted(copies | {pair for pair, count in shared.items() if count >= RARE_RUNS}):
        if patients[first] == patients[second]:
            continue
        both = runs[first] & runs[second]
        share = 1.0 if words[first] == words[second] else len(both) / len(runs[first] | runs[second])
        rare = sum(len({patients[number] for number in holders[run]}) < TEMPLATE_PATIENTS for run in both)
        if share >= ALIKE and rare >= RARE_RUNS:
            count = min(len(words[first]), len(words[second]))
            alike.append(Alike(first=first, second=second, share=share, words=count))
    return alike, templates
