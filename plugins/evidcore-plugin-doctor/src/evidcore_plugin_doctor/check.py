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
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

from evidcore.api import Case, DataError, Dataset
from evidcore.case import Split
from evidcore.registry import blame
from evidcore.registry.factory import offer_of
from evidcore_plugin_doctor import statements
from evidcore_plugin_doctor.answers import contradictions
from evidcore_plugin_doctor.fault import Fault, Severity
from evidcore_plugin_doctor.inspection import Inspected, inspect
from evidcore_plugin_doctor.likeness import Copy, Library, copied_volumes
from evidcore_plugin_doctor.masks import misnumbered
from evidcore_plugin_doctor.rendering import Rendering
from evidcore_plugin_doctor.repeats import Home, repeated, shared_names
from evidcore_plugin_doctor.statements import Listed
from evidcore_plugin_doctor.workers import in_processes

# Thai, Lao, Burmese, Khmer, kana and Han: no spaces stand between their words
_UNSPACED = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+")
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
    name: str = "",
    library: Library | None = None,
) -> Summary:
    """Look at the cases that `list_cases` returned, and report each fault as soon as it is known.

    The files of `chosen` cases are read, of all where it is None; `on_case` is given what was seen of each,
    in order. Volumes are drawn while they are in memory where a `rendering` says how. Of a recipe's data set,
    `name` is its name, and the `library` has those before, with which it is compared.
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
    voxels: dict[str, list[int]] = collections.defaultdict(list)
    late: list[Fault] = []
    labels: list[tuple[Case, str, list[int]]] = []
    patients: list[tuple[Case, str, Mapping[str, Any]]] = []
    library = library or Library()
    first, first_volume = len(library.homes), len(library.volumes)
    library.homes += (Home(name, split, case) for split, case in cases)
    for fault in shared_names(library.homes, first):
        add(fault)
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
            library.volumes.append(Copy(Home(name, split, case), volume.file, volume.digest))
        for mask, count in inspected.mask_voxels.items():
            voxels[mask].append(count)
        labels += [(case, path, values) for path, values in inspected.labels.items()]
        patients += [(case, *stated) for stated in (("the table", case.notes), *inspected.headers)]
        progress(number, len(chosen))
    copied, relatives = copied_volumes(library, first_volume)
    empty = [mask for mask, numbers in voxels.items() if len(numbers) > 1 and not any(numbers)]
    for mask in empty:
        text = f"mask {mask!r} is empty in all {len(voxels[mask])} cases that name it."
        add(Fault(check="mask", severity="error", text=f"{text} Check its label, key or file pattern."))
    late = [*copied, *statements.unlike_files(cases), *misnumbered(labels, empty), *late]
    volumes = len(library.volumes) - first_volume
    negatives = statements.negatives(patients, volumes)
    for fault in (*late, *statements.unlike_patients(patients), *negatives):
        add(fault)
    copies, templates = copied_reports(library.homes, first)
    for fault in copies:
        add(fault)
    for _, case in cases:
        for fault in (*statements.without_value(case), *contradictions(case)):
            add(fault)
    return Summary(
        cases=dict(collections.Counter(split for split, _ in cases)),
        patients=len({case.patient for _, case in cases} - {None}) or None,
        volumes=volumes,
        masks=sum(map(len, voxels.values())),
        reports=sum(case.report is not None for _, case in cases),
        errors=dict(counts["error"]),
        warnings=dict(counts["warning"]),
        relatives=relatives,
        templates=templates,
        seconds=time.monotonic() - began,
    )


def copied_reports(homes: Sequence[Home], start: int = 0) -> tuple[list[Fault], int]:
    """Return a fault for each report from `start` on that another patient has, and how many are templates.

    Normal findings are told in the same words again and again, so equal words alone prove nothing. What two
    reports share counts where hardly anybody else says it: runs of five words that few patients have. A text
    that many patients share is a template and no fault.
    """
    reported = [home for home in homes if home.case.report]
    start = sum(home.case.report is not None for home in homes[:start])
    words = [tuple(_WORD.findall(home.case.report.text.casefold())) for home in reported if home.case.report]
    # how many tokens stand for a word: two characters where most are of scripts without spaces
    tokens = [1 + (2 * len(re.findall(f"[{_UNSPACED}]", "".join(item))) > len(item)) for item in words]
    runs = [  # by hash: the words themselves would fill the memory
        {hash(item[at : at + size]) for at in range(len(item) - size + 1)}
        for item, size in zip(words, (RUN_WORDS * count for count in tokens), strict=True)
    ]
    holders: dict[int, list[int]] = collections.defaultdict(list)
    equal: dict[tuple[str, ...], list[int]] = collections.defaultdict(list)
    for number, mine in enumerate(runs):
        equal[words[number]].append(number)
        for run in mine:
            holders[run].append(number)
    originals = {group[0] for group in equal.values()}

    def is_rare(numbers: Sequence[int]) -> bool:
        return len({reported[number].owner for number in numbers}) < TEMPLATE_PATIENTS

    def is_wrong(home: Home, other: Home) -> bool:
        return home.owner != other.owner and home.excludes(other)

    # every copy with the first of its text, and the pairs of first texts that share enough rare runs
    pairs = [(first, number) for number, first in repeated(words, reported, is_wrong).items()]
    shared: collections.Counter[tuple[int, int]] = collections.Counter()
    for numbers in holders.values():
        few = [number for number in numbers if number in originals]
        if 1 < len(few) <= _COMMON:
            shared.update(itertools.combinations(few, 2))
    pairs += (pair for pair, count in shared.items() if count >= RARE_RUNS)
    faults = []
    for first, number in sorted(pair for pair in pairs if pair[1] >= start):
        home, other, both = reported[number], reported[first], runs[first] & runs[number]
        share = 1.0 if words[first] == words[number] else len(both) / len(runs[first] | runs[number])
        rare = sum(is_rare(holders[run]) for run in both) / tokens[first]
        if not is_wrong(home, other) or share < ALIKE or rare < RARE_RUNS:
            continue
        count = min(len(words[first]), len(words[number])) // tokens[first]
        how = "is word for word that" if share == 1 else f"is {100 * share:.0f} % that"
        is_apart = home.split != other.split
        where = f" in {other.split}, this one in {home.split}" if is_apart else ""
        text = f"its report ({count} words) {how} of case {other.id_within(home.dataset, repr)}, another"
        text += f" patient{where}. Look whether it belongs to this scan, and drop one of them otherwise."
        severity: Severity = "error" if is_apart else "warning"
        where = other.id_within(home.dataset)
        faults.append(Fault(check="report", severity=severity, case=home.case.id, other=where, text=text))
    groups = (group for item, group in equal.items() if item and group[-1] >= start)
    return faults, sum(not is_rare(group) for group in groups)
