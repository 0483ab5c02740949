import dataclasses
import itertools

import numpy as np
import pytest
from evidcore_testing import TinyDataset, check_dataset
from evidcore_testing.data import save_nifti
from mutants import altered, caught, changing

from evidcore.api import Finding, MaskRef, Question, Report, Span, VolumeRef, read, read_mask
from evidcore.case import Query

COUNT = itertools.count()
SPAN = Span(start=0, end=9, label="normal")


class Removable(TinyDataset):
    """Every finding can be taken out of the volumes: its voxels become water."""

    step_mm = 5.0

    def without(self, case, finding):
        if case.state_of(finding) != "present":
            return case.volumes
        volume = read(case.volumes[0])
        mask = read_mask(case.masks[finding], like=volume)
        return (self.written(case, np.where(mask, 0, volume.array)),)

    def written(self, case, array):
        path = self.folder / f"{case.id}-{next(COUNT)}.nii.gz"
        return VolumeRef(path=str(save_nifti(path, array, (self.step_mm, 2.0, 2.0))))


def listing(change):
    return changing(TinyDataset, "cases", change)


def each(**fields):
    """Return the sound data set, its cases with other values, which may depend on the case."""

    def change(case):
        values = {name: value(case) if callable(value) else value for name, value in fields.items()}
        return dataclasses.replace(case, **values)

    return listing(lambda cases: map(change, cases))


def asking(**fields):
    return each(questions=(Question(id="q", text="?", options=("yes", "no"), **fields),))


def arbitrary(refs):
    return tuple(dataclasses.replace(ref, intensity="arbitrary") for ref in refs)


def darker(self, case, finding):
    return (self.written(case, read(case.volumes[0]).array - 1),)


def noisy(self, case, array):
    return Removable.written(self, case, array + next(COUNT))


def asked_twice(case):
    return (Query(id="q", text="Show it.", masks=(*case.masks,)),) * 2


def small_mask(self, split):
    path = self.folder / "small.npz"
    np.savez(path, heart=np.ones((3, 4, 5), dtype=bool))
    masks = {"heart": MaskRef(path=str(path), key="heart")}
    return (dataclasses.replace(case, masks=masks) for case in TinyDataset.cases(self, split))


TAIL = Query(id="q", text="Show it.", masks=("tail",))
NODULE = "'case-0' without 'lung nodule'"
MUTANTS = {
    r"cases come lazily. cases\('train'\) gave a list": listing(list),
    "ids are unique over all splits. 'case' is in train and train": each(id="case"),
    "no patient is in two splits. 'patient-0' is in train and validation":
        each(patient=lambda case: f"patient-{int(case.id[5:]) % 4}"),
    r"of the declared vocabulary. got 'nodules' \(case 'case-0'\)": each(findings=(Finding(name="nodules"),)),
    r"spans lie inside their report. got 0\.\.9 in 3 characters \(case 'case-0'\)":
        each(report=Report(text="No.", spans=(SPAN,)), findings=()),
    r"answers lie among their options. got \[2\] for 2 options of 'q' \(case 'case-0'\)": asking(answer=2),
    r"options that hold. answer 0 is not in \(1,\) of 'q'": asking(answer=0, true_options=(1,)),
    r"queries mean masks of their case. 'q' names \['tail'\] \(case 'case-0'\)": each(queries=(TAIL,)),
    r"queries have ids of their own. got \['q', 'q'\]": each(queries=asked_twice),
    r"a case has volumes. got none \(case 'case-0'\)": each(volumes=()),
    "volumes can be read. case 'case-0' raised DataError: lost":
        each(volumes=(VolumeRef(path="lost.nii.gz"),)),
    r"masks lie on the grid .* mask 'heart' of case 'case-0' raised .*shape \(3, 4, 5\)":
        altered(TinyDataset, cases=small_mask),
    r"cases come twice the same. train: 8, then 8, \['case-\d', ":
        listing(lambda cases: iter([*cases][:: 1 if next(COUNT) % 2 else -1])),
    "there are cases. got none in any split": listing(lambda cases: iter(())),
    "the fingerprint is a text. got ''": altered(TinyDataset, fingerprint=lambda self: ""),
    r"fingerprint stays. '\d+', then '\d+'": altered(TinyDataset, fingerprint=lambda self: str(next(COUNT))),
    "another fingerprint. both are 'tiny'": altered(TinyDataset, fingerprint=lambda self: "tiny"),
    rf"as many volumes. got 0 for 1 \(case {NODULE}": changing(Removable, "without", lambda refs: ()),
    "the grid stays. volume 0: .* of 4x2x2 mm .*the case's .* of 5x2x2 mm": altered(Removable, step_mm=4.0),
    "the intensity stays. got 'arbitrary', the case has 'hu'": changing(Removable, "without", arbitrary),
    f"and only there. all voxels are the case's .*{NODULE}":
        altered(Removable, without=lambda self, case, finding: case.volumes),
    "and only there. not all voxels are the case's .* without 'pleural": altered(Removable, without=darker),
    rf"removed twice the same. voxels differ \(case {NODULE}": altered(Removable, written=noisy),
}  # fmt: skip


def check(made, folder):
    check_dataset(made(folder), other=made(folder, train=9))


@pytest.mark.parametrize("sound", [TinyDataset, Removable, each(patient=None)])
def test_a_sound_dataset_passes(sound, tmp_path):
    check(sound, tmp_path)


@pytest.mark.parametrize("message", MUTANTS)
def test_a_dataset_that_breaks_a_clause_is_caught(message, tmp_path):
    with caught(message):
        check(MUTANTS[message], tmp_path)
