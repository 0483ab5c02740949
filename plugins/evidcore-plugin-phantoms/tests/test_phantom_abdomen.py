"""The abdominal phantoms on disk: what a case holds, read back through the core's own readers."""

import collections
import re

import numpy as np
import pytest
from evidcore_plugin_phantoms.abdomen.dataset import PhantomAbdomen
from evidcore_plugin_phantoms.abdomen.lesions import FINDINGS
from evidcore_plugin_phantoms.abdomen.queries import HOSTS, KINDS
from evidcore_plugin_phantoms.abdomen.scene import ORGANS, TABLES
from evidcore_plugin_reports.agreement import compare_details, states
from evidcore_plugin_reports.labelers import NegationRules
from scipy.spatial.distance import pdist

from evidcore.api import read, read_mask

SPACING = (300 / 24, 288 / 48, 384 / 64)


@pytest.fixture(scope="module")
def cases(abdomen):
    return list(abdomen().cases("test"))


def masks_of(case):
    """Return a case's masks by name, as everyone else reads them."""
    volume = read(case.volumes[0])
    return {name: read_mask(ref, like=volume) for name, ref in case.masks.items()}


@pytest.fixture(scope="module")
def masks(cases):
    return [masks_of(case) for case in cases]


def test_masks_are_organs_then_findings_then_numbered_lesions(cases, masks):
    numbered = 0
    for case, result in zip(cases, masks, strict=True):
        assert list(case.masks)[: len(ORGANS)] == list(ORGANS)
        assert all(mask.any() for mask in result.values())
        assert set(case.present()) == set(result) & {finding.name for finding in case.findings}
        for finding in case.present():
            parts = [result[name] for name in result if re.fullmatch(rf"{finding} \d+", name)]
            numbered += len(parts)
            assert len(parts) != 1
            if parts:
                assert np.array_equal(np.logical_or.reduce(parts), result[finding])
    assert numbered > 10


def measured(case, masks):
    """Return finding, side, size and nature of each lesion, measured on the masks by brute force."""
    for name, mask in lesions_of(case, masks).items():
        finding = re.sub(r" \d+$", "", name)
        side = organ_under(mask, masks).split()[0] if "kidney" in finding else None
        yield finding, side, longest_mm(mask), finding.endswith(("metastasis", "tumour"))


def test_a_report_and_findings_say_what_the_masks_show(cases, masks):
    compared = 0
    for case, result in zip(cases, masks, strict=True):
        lesions = list(measured(case, result))
        sentences = [(case.report.text[span.start : span.end], span.label) for span in case.report.spans]
        assert " ".join(text for text, _ in sentences) == case.report.text
        labels = [label for _, label in sentences]
        assert labels == sorted(labels, reverse=True)  # "normal" before "abnormal"
        told = collections.Counter()
        for text, label in sentences:
            if label == "abnormal":
                finding = next(name for name in case.present() if name in text.lower())
                side = next((word for word in ("left", "right") if f"on the {word}" in text), None)
                told[finding, side, re.search(r"(\d+) mm", text)[1], "malignant" in text] += 1
        assert told == collections.Counter((*each[:2], f"{each[2]:.0f}", each[3]) for each in lesions)
        for finding in case.findings:
            said = case.report.text[finding.span.start : finding.span.end]
            assert said.lower() == finding.name
            own = [each for each in lesions if each[0] == finding.name]
            assert (finding.state == "present") == bool(own)
            sides = {side for _, side, _, _ in own} - {None}
            assert finding.side == ("both" if len(sides) == 2 else next(iter(sides), None))
            assert finding.size_mm == (pytest.approx(max(each[2] for each in own)) if own else None)
        compared += len(lesions)
    assert compared > 40


def lesions_of(case, masks):
    """Return the masks of single lesions: the numbered ones, and findings that have no number."""
    names = [name for name in masks if re.sub(r" \d+$", "", name) in case.present()]
    return {name: masks[name] for name in names if f"{name} 1" not in names}


def organ_under(mask, masks):
    """Return the organ that holds most of a mask."""
    return max(ORGANS, key=lambda organ: int((masks[organ] & mask).sum()))


def longest_mm(mask):
    """Return the longest distance between two voxels of a slice, plus a voxel's width, by every pair."""
    planes = [np.argwhere(plane) * SPACING[1:] for plane in mask if plane.any()]
    return max(pdist(plane).max() if len(plane) > 1 else 0.0 for plane in planes) + SPACING[2]


def hosts_in(text):
    """Return the organs whose descriptions stand in a text; "kidney" for one of them or both."""
    described = {**TABLES["described"], "kidney": TABLES["described"]["kidney"] + TABLES["both"]}
    return {host for host, words in described.items() if any(each in text.lower() for each in words)}


def answer(query, case, masks):
    """Return the masks that a query means, from its kind, its words and the voxels of all masks."""
    single = lesions_of(case, masks)
    homes = {name: organ_under(mask, masks) for name, mask in single.items()}
    kidneys, said = {"left kidney", "right kidney"}, hosts_in(query.text)
    if query.kind == "organ beside another":
        return {"left kidney"} if "spleen" in said else {"right kidney"}
    (host,) = said
    here = {name for name in single if homes[name] in HOSTS.get(host, ())}

    def ill(*kinds):
        return {homes[name] for name in here if re.sub(r" \d+$", "", name) in kinds}

    def height(name):
        return np.nonzero(single[name])[0].mean()

    def size(name):
        return longest_mm(single[name])

    malignant = {name for name in here if "metastasis" in name or "tumour" in name}
    told = "cyst" if any(each in query.text for each in TABLES["described_lesions"]["cyst"]) else "tumour"
    result = {
        "organ": lambda: {host},
        "both organs": lambda: kidneys,
        "organ with the lesion": lambda: ill(f"kidney {told}"),
        "organ without a lesion": lambda: kidneys - ill("kidney cyst", "kidney tumour"),
        "larger organ": lambda: {max(kidneys, key=lambda name: masks[name].sum())},
        "smaller organ": lambda: {min(kidneys, key=lambda name: masks[name].sum())},
        "only lesion": lambda: here,
        "all lesions": lambda: here,
        "larger lesion": lambda: {max(here, key=size)},
        "smaller lesion": lambda: {min(here, key=size)},
        "upper lesion": lambda: {max(here, key=height)},
        "lower lesion": lambda: {min(here, key=height)},
        "malignant lesion": lambda: malignant,
        "benign lesion": lambda: here - malignant,
    }
    return result[query.kind]()


def test_a_query_is_answered_by_what_its_words_say(cases, masks):
    """The text tells the organ; the answer is found anew in the voxels, and there is no other."""
    tried = collections.Counter()
    for case, result in zip(cases, masks, strict=True):
        for query in case.queries:
            assert set(query.masks) == answer(query, case, result), (case.id, query)
            assert set(query.masks) <= set(query.among)
            if "lesion" in query.kind and not query.kind.startswith("organ"):
                assert (len(query.among) == 2) or query.masks == query.among
            tried[query.kind] += 1
    assert set(tried) >= set(KINDS) - {"organ without a lesion"}


def test_only_the_kinds_that_are_asked_for_are_asked(abdomen):
    few = abdomen(kinds=("organ", "all lesions"))
    assert {query.kind for case in few.cases("test") for query in case.queries} == {"organ", "all lesions"}
    none = abdomen(queries_per_case=0)
    assert not [query for case in none.cases("test") for query in case.queries]


def test_an_organ_that_a_moved_scan_does_not_show_is_not_asked_about(abdomen):
    moved = list(abdomen(scan_shift_mm=90.0).cases("test"))
    shown = [set(case.masks) for case in moved]
    assert 0 < sum("bladder" in masks for masks in shown) < len(moved)
    for case, masks in zip(moved, shown, strict=True):
        assert all({*query.masks, *query.among} <= masks for query in case.queries)


def test_masks_reports_and_queries_follow_patients_who_lie_elsewhere_or_are_mirrored(abdomen):
    options = {"in_plane_shift_mm": 15.0, "size_spread": 0.1, "mirrored": 0.5}
    plain = [(case.id, case.volumes) for case in abdomen().cases("test")]
    same = abdomen(in_plane_shift_mm=0.0, size_spread=0.0, mirrored=0.0)
    assert [(case.id, case.volumes) for case in same.cases("test")] == plain
    compared, mirrors = 0, []
    for case in abdomen(**options).cases("test"):
        result = masks_of(case)
        places = {name: np.argwhere(mask)[:, 2].mean() for name, mask in result.items()}
        mirrored = places["liver"] > places["spleen"]
        mirrors.append(mirrored)
        assert places["left kidney"] > places["right kidney"]
        for query in case.queries:
            if query.kind == "organ beside another":
                beside_spleen = "spleen" in hosts_in(query.text)
                assert query.masks == ("left kidney" if beside_spleen != mirrored else "right kidney",)
                compared += 1
            else:
                assert set(query.masks) == answer(query, case, result), (case.id, query)
    assert compared > 4
    assert 4 <= sum(mirrors) <= 16  # of 20


def test_reports_are_read_with_nature_place_and_side_as_the_findings_tell(tmp_path):
    small = PhantomAbdomen(
        tmp_path, train_cases=20, validation_cases=0, test_cases=0, size_zyx=(20, 48, 64), prevalence=0.5
    )
    labeler, told = NegationRules(vocabulary=lambda: FINDINGS), 0
    for case in small.cases("train"):
        result = labeler(case.report.text)
        assert states(result) == {item.name: item.state for item in case.findings}
        details = compare_details(result, case.findings)
        assert details.keys() == set(case.present())
        for entry in details.values():
            assert {"malignant", "location"} <= entry.keys()
            assert all(entry.values())
            told += len(entry)
        for finding in case.findings:
            assert (finding.malignant is None) == (finding.state == "absent")
    assert told > 100
