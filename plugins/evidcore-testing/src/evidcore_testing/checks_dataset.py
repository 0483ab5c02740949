"""The check of datasets."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from evidcore.api import Case, Dataset, read, read_mask
from evidcore.case import Split
from evidcore.data import Volume
from evidcore_testing.clauses import Clauses

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
    - a case that a recipe excludes is not listed, and counts in the fingerprint;
    - the fingerprint is a text that stays, and another one for other cases.

    Args:
        dataset: the component under test.
        other: one that holds other cases; its fingerprint must differ.
        volumes_per_split: of how many cases the volumes and masks are read, with and without findings.
    """
    check = Clauses(dataset)
    before = dataset.fingerprint()
    check(before and isinstance(before, str), "the fingerprint is a text", f"got {before!r}")
    ids: dict[str, Split] = {}
    patients: dict[str, Split] = {}
    for split in SPLITS:
        given = dataset.cases(split)
        got = f"cases({split!r}) gave a {type(given).__name__}"
        check(not isinstance(given, list | tuple), "cases come lazily", got)
        cases, again = list(given), list(dataset.cases(split))
        changed = [item.id for item, other in zip(cases, again, strict=False) if item != other]
        got = f"{split}: {len(cases)}, then {len(again)}, {changed[:5]}"
        check(len(cases) == len(again) and not changed, "cases come twice the same", got)
        for case in cases:
            got = f"{case.id!r} is in {ids.get(case.id)} and {split}"
            check(case.id not in ids, "ids are unique over all splits", got)
            ids[case.id] = split
            if case.patient is not None:
                first = patients.setdefault(case.patient, split)
                got = f"{case.patient!r} is in {first} and {split}"
                check(first == split, "no patient is in two splits", got)
            _case_is_sound(check, dataset, case)
        for case in cases[:volumes_per_split]:
            with check.raises_nothing("volumes can be read", f"case {case.id!r}"):
                volumes = [read(ref) for ref in case.volumes]
            for name, mask in case.regions.items():
                given_mask = f"mask {name!r} of case {case.id!r}"
                with check.raises_nothing("masks lie on the grid of their volume", given_mask):
                    read_mask(mask, like=volumes[0])
            absent = [each.name for each in case.findings if each.state == "absent"]
            for finding in (*case.present()[:2], *absent[:1]):
                _a_finding_is_removed(check, dataset, case, finding, volumes)
    check(ids, "there are cases", "got none in any split")
    _a_case_is_excluded(check, dataset, *next(iter(ids.items())), before)
    after = dataset.fingerprint()
    check(before == after, "the fingerprint stays", f"{before!r}, then {after!r}")
    differs = other is None or other.fingerprint() != before
    check(differs, "other cases have another fingerprint", f"both are {before!r}")


def _a_case_is_excluded(check: Clauses, dataset: Dataset, name: str, split: Split, before: str) -> None:
    dataset.exclude([name], Path(), "exclude")
    for listing in (dataset.cases, dataset.listed):
        left = [case.id for case in listing(split)]
        check(name not in left, "what a recipe excludes is not listed", f"got {name!r}")
    check(dataset.fingerprint() != before, "the fingerprint counts what is excluded", f"got {before!r}")
    dataset.exclude([], Path(), "exclude")


def _case_is_sound(check: Clauses, dataset: Dataset, case: Case) -> None:
    where = f"(case {case.id!r})"
    check(case.volumes, "a case has volumes", f"got none {where}")
    for finding in case.findings:
        known = not dataset.findings or finding.name in dataset.findings
        check(known, "findings are of the declared vocabulary", f"got {finding.name!r} {where}")
    text = case.report.text if case.report is not None else ""
    spans = [*(case.report.spans if case.report else ()), *(each.span for each in case.findings if each.span)]
    for span in spans:
        got = f"got {span.start}..{span.end} in {len(text)} characters {where}"
        check(span.end <= len(text), "spans lie inside their report", got)
    for question in case.questions:
        right, among = {question.answer, *question.true_options}, range(len(question.options))
        got = f"got {sorted(right)} for {len(among)} options of {question.id!r} {where}"
        check(right <= {*among}, "answers lie among their options", got)
        agrees = not question.true_options or question.answer in question.true_options
        got = f"answer {question.answer} is not in {question.true_options} of {question.id!r} {where}"
        check(agrees, "the answer is among the options that hold", got)
    ids = [query.id for query in case.queries]
    check(len({*ids}) == len(ids), "queries have ids of their own", f"got {ids} {where}")
    for query in case.queries:
        unknown = sorted({*query.masks, *query.among} - case.masks.keys())
        check(not unknown, "queries mean masks of their case", f"{query.id!r} names {unknown} {where}")


def _a_finding_is_removed(
    check: Clauses, dataset: Dataset, case: Case, finding: str, own: Sequence[Volume]
) -> None:
    where = f"(case {case.id!r} without {finding!r})"
    with check.raises_nothing("a finding is removed or cannot be", where):
        refs = dataset.without(case, finding)
        if refs is None:
            return
        volumes, again = ([*map(read, some)] for some in (refs, dataset.without(case, finding) or ()))
    got = f"got {len(volumes)} for {len(own)} {where}"
    check(len(volumes) == len(own), "without a finding there are as many volumes", got)
    for number, (item, other) in enumerate(zip(own, volumes, strict=True)):
        got = f"volume {number}: {other.geometry}, the case's {item.geometry} {where}"
        same = item.shape_zyx == other.shape_zyx and np.allclose(item.affine, other.affine, atol=1e-4)
        check(same, "without a finding the grid stays", got)
        got = f"got {other.intensity!r}, the case has {item.intensity!r} {where}"
        check(item.intensity == other.intensity, "without a finding the intensity stays", got)
    present = case.state_of(finding) == "present"
    got = f"{'all' if present else 'not all'} voxels are the case's {where}"
    clause = "voxels change where the finding is present, and only there"
    check(_equal(own, volumes) != present, clause, got)
    check(_equal(volumes, again), "a finding is removed twice the same", f"voxels differ {where}")


def _equal(these: Sequence[Volume], those: Sequence[Volume]) -> bool:
    pairs = zip(these, those, strict=False)
    return len(these) == len(those) and all(np.array_equal(one.array, other.array) for one, other in pairs)
