"""The check of datasets."""

from __future__ import annotations

import numpy as np

from evidcore.api import Case, Dataset, read, read_mask
from evidcore.case import Split
from evidcore_testing.clauses import raises_nothing, require

SPLITS: tuple[Split, ...] = ("train", "validation", "test")


def check_dataset(dataset: Dataset, *, other: Dataset | None = None, volumes_per_split: int = 2) -> None:
    """Assert the contract of a dataset.

    - cases come lazily, twice the same;
    - ids are unique over all splits;
    - no patient is in two splits;
    - findings are of the declared vocabulary;
    - spans lie inside their report;
    - answers lie among their options;
    - queries have ids of their own and mean masks of their case;
    - volumes can be read and masks lie on their grid;
    - without a finding a case has other voxels if it was present, the same ones if it was absent, on the same
      grids and twice the same;
    - the fingerprint is a text that stays, and another one for other cases.

    Args:
        dataset: the component under test.
        other: one that holds other cases; its fingerprint must differ.
        volumes_per_split: of how many cases the volumes and masks are read, with and without findings.
    """
    before = dataset.fingerprint()
    require(bool(before) and isinstance(before, str), dataset, "the fingerprint is a text", f"got {before!r}")
    homes: dict[str, Split] = {}
    patients: dict[str, Split] = {}
    for split in SPLITS:
        given = dataset.cases(split)
        lazy = not isinstance(given, list | tuple)
        require(lazy, dataset, "cases come lazily", f"cases({split!r}) gave a {type(given).__name__}")
        cases = list(given)
        again = list(dataset.cases(split))
        changed = [item.id for item, two in zip(cases, again, strict=False) if item != two]
        same = len(cases) == len(again) and not changed
        told = f"{split}: {len(cases)}, then {len(again)}, {changed[:5]}"
        require(same, dataset, "cases come twice the same", told)
        for case in cases:
            clause, result = (
                "ids are unique over all splits",
                f"{case.id!r} is in {homes.get(case.id)} and {split}",
            )
            require(case.id not in homes, dataset, clause, result)
            homes[case.id] = split
            if case.patient is not None:
                home = patients.setdefault(case.patient, split)
                clause, result = "no patient is in two splits", f"{case.patient!r} is in {home} and {split}"
                require(home == split, dataset, clause, result)
            _case_is_sound(dataset, case)
        for case in cases[:volumes_per_split]:
            _volumes_are_readable(dataset, case)
            absent = [each.name for each in case.findings if each.state == "absent"]
            for finding in (*case.present()[:2], *absent[:1]):
                _a_finding_is_removed(dataset, case, finding)
    require(bool(homes), dataset, "there are cases", "got none in any split")
    after = dataset.fingerprint()
    require(before == after, dataset, "the fingerprint stays", f"{before!r}, then {after!r}")
    if other is not None:
        differs = other.fingerprint() != before
        require(differs, dataset, "other cases have another fingerprint", f"both are {before!r}")


def _case_is_sound(dataset: Dataset, case: Case) -> None:
    where = f"(case {case.id!r})"
    require(bool(case.volumes), dataset, "a case has volumes", f"got none {where}")
    for finding in case.findings:
        known = not dataset.findings or finding.name in dataset.findings
        require(known, dataset, "findings are of the declared vocabulary", f"got {finding.name!r} {where}")
    text = case.report.text if case.report is not None else ""
    spans = [*(case.report.spans if case.report else ()), *(each.span for each in case.findings if each.span)]
    for span in spans:
        result = f"got {span.start}..{span.end} in {len(text)} characters {where}"
        require(span.end <= len(text), dataset, "spans lie inside their report", result)
    for question in case.questions:
        places = {question.answer, *question.true_options}
        among = all(0 <= place < len(question.options) for place in places)
        result = f"got {sorted(places)} for {len(question.options)} options of {question.id!r} {where}"
        require(among, dataset, "answers lie among their options", result)
        agrees = not question.true_options or question.answer in question.true_options
        result = f"answer {question.answer} is not in {question.true_options} of {question.id!r} {where}"
        require(agrees, dataset, "the answer is among the options that hold", result)
    ids = [query.id for query in case.queries]
    require(len(set(ids)) == len(ids), dataset, "queries have ids of their own", f"got {ids} {where}")
    for query in case.queries:
        unknown = sorted({*query.masks, *query.among} - case.masks.keys())
        told = f"{query.id!r} names {unknown} {where}"
        require(not unknown, dataset, "queries mean masks of their case", told)


def _volumes_are_readable(dataset: Dataset, case: Case) -> None:
    where = f"case {case.id!r}"
    with raises_nothing(dataset, "volumes can be read", where):
        volumes = [read(ref) for ref in case.volumes]
    for name, ref in case.masks.items():
        with raises_nothing(dataset, "masks lie on the grid of their volume", f"mask {name!r} of {where}"):
            read_mask(ref, like=volumes[0])


def _a_finding_is_removed(dataset: Dataset, case: Case, finding: str) -> None:
    where = f"(case {case.id!r} without {finding!r})"
    with raises_nothing(dataset, "a finding is removed or cannot be", where):
        refs = dataset.without(case, finding)
        if refs is None:
            return
        own = [read(ref) for ref in case.volumes]
        volumes = [read(ref) for ref in refs]
        again = [read(ref) for ref in dataset.without(case, finding) or ()]
    result = f"got {len(volumes)} for {len(own)} {where}"
    require(len(volumes) == len(own), dataset, "without a finding there are as many volumes", result)
    changed = False
    for number, (item, other) in enumerate(zip(own, volumes, strict=True)):
        same = item.shape_zyx == other.shape_zyx and np.allclose(item.affine, other.affine, atol=1e-4)
        result = f"volume {number}: {other.geometry}, the case's {item.geometry} {where}"
        require(same, dataset, "without a finding the grid stays", result)
        result = f"got {other.intensity!r}, the case has {item.intensity!r} {where}"
        require(item.intensity == other.intensity, dataset, "without a finding the intensity stays", result)
        changed = changed or not np.array_equal(item.array, other.array)
    present = case.state_of(finding) == "present"
    result = f"{'all' if present else 'not all'} voxels are the case's {where}"
    require(changed == present, dataset, "voxels change where the finding is present, and only there", result)
    same = len(again) == len(volumes) and all(
        np.array_equal(item.array, other.array) for item, other in zip(volumes, again, strict=True)
    )
    require(same, dataset, "a finding is removed twice the same", f"voxels differ {where}")
