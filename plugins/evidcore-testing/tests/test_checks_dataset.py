import dataclasses
import itertools

import nibabel
import numpy as np
import pytest
from evidcore_testing import TinyDataset, check_dataset

from evidcore.api import Finding, MaskRef, Question, Report, Span, VolumeRef, read, read_mask
from evidcore.case import Query

COUNT = itertools.count()


class Removable(TinyDataset):
    """Every finding can be taken out of the volumes: its voxels become water."""

    def without(self, case, finding):
        if case.state_of(finding) != "present":
            return case.volumes
        volume = read(case.volumes[0])
        mask = read_mask(case.masks[finding], like=volume)
        return (self.written(case, np.where(mask, 0, volume.array)),)

    def written(self, case, array, step_mm=5.0):
        path = self.folder / f"{case.id}-without-{next(COUNT)}.nii.gz"
        nibabel.save(nibabel.Nifti1Image(array.transpose(2, 1, 0), np.diag([-2.0, -2.0, step_mm, 1.0])), path)
        return VolumeRef(path=str(path))


def mutant(of=TinyDataset, **members):
    return type("Mutant", (of,), members)


def listing(change):
    return mutant(cases=lambda self, split: change(TinyDataset.cases(self, split)))


def each(**fields):
    """Return the sound data set, its cases with other values, each of which may depend on the case."""

    def change(case):
        return dataclasses.replace(case, **{name: value(case) for name, value in fields.items()})

    return listing(lambda cases: map(change, cases))


def asking(**fields):
    question = Question(id="q", text="?", options=("yes", "no"), **fields)
    return each(questions=lambda case: (question,))


def without(change):
    return mutant(Removable, without=lambda self, case, finding: change(self, case, finding))


def small_mask(self, split):
    path = self.folder / "small.npz"
    np.savez(path, heart=np.ones((3, 4, 5), dtype=bool))
    masks = {"heart": MaskRef(path=str(path), key="heart")}
    return (dataclasses.replace(case, masks=masks) for case in TinyDataset.cases(self, split))


MUTANTS = {
    r"Mutant breaks its contract: cases come lazily. cases\('train'\) gave a list": listing(list),
    "ids are unique over all splits. 'case' is in train and train": each(id=lambda case: "case"),
    "no patient is in two splits. 'patient-0' is in train and validation": each(
        patient=lambda case: f"patient-{int(case.id[5:]) % 4}"
    ),
    r"findings are of the declared vocabulary. got 'nodules' \(case 'case-0'\)": each(
        findings=lambda case: (Finding(name="nodules"),)
    ),
    r"spans lie inside their report. got 0\.\.9 in 3 characters \(case 'case-0'\)": each(
        report=lambda case: Report(text="No.", spans=(Span(start=0, end=9, label="normal"),)),
        findings=lambda case: (),
    ),
    r"answers lie among their options. got \[2\] for 2 options of 'q' \(case 'case-0'\)": asking(answer=2),
    r"the answer is among the options that hold. answer 0 is not in \(1,\) of 'q'": asking(
        answer=0, true_options=(1,)
    ),
    r"queries mean masks of their case. 'q' names \['tail'\] \(case 'case-0'\)": each(
        queries=lambda case: (Query(id="q", text="Show it.", masks=("tail",)),)
    ),
    r"queries have ids of their own. got \['q', 'q'\] \(case 'case-0'\)": each(
        queries=lambda case: (Query(id="q", text="Show it.", masks=(*case.masks,)[:1]),) * 2
    ),
    r"a case has volumes. got none \(case 'case-0'\)": each(volumes=lambda case: ()),
    r"volumes can be read. case 'case-0' raised DataError: lost\.nii\.gz: ": each(
        volumes=lambda case: (VolumeRef(path="lost.nii.gz"),)
    ),
    r"masks lie on the grid .* mask 'heart' of case 'case-0' raised .*shape \(3, 4, 5\)": mutant(
        cases=small_mask
    ),
    r"cases come twice the same. train: 8, then 8, \['case-\d', ": listing(
        lambda cases: iter([*cases][:: 1 if next(COUNT) % 2 else -1])
    ),
    "there are cases. got none in any split": listing(lambda cases: iter(())),
    "the fingerprint is a text. got ''": mutant(fingerprint=lambda self: ""),
    r"the fingerprint stays. '\d+', then '\d+'": mutant(fingerprint=lambda self: str(next(COUNT))),
    "other cases have another fingerprint. both are 'tiny'": mutant(fingerprint=lambda self: "tiny"),
    r"as many volumes. got 0 for 1 \(case 'case-0' without 'lung nodule'\)": without(
        lambda self, case, finding: ()
    ),
    "the grid stays. volume 0: .* of 4x2x2 mm .*the case's .* of 5x2x2 mm": mutant(
        Removable, written=lambda self, case, array: Removable.written(self, case, array, step_mm=4.0)
    ),
    "the intensity stays. got 'arbitrary', the case has 'hu'": without(
        lambda self, case, finding: tuple(
            dataclasses.replace(ref, intensity="arbitrary") for ref in case.volumes
        )
    ),
    "and only there. all voxels are the case's .* without 'lung nodule'": without(
        lambda self, case, finding: case.volumes
    ),
    "and only there. not all voxels are the case's .* without 'pleural effusion'": without(
        lambda self, case, finding: (self.written(case, read(case.volumes[0]).array - 1),)
    ),
    r"removed twice the same. voxels differ \(case 'case-0' without 'lung nodule'\)": mutant(
        Removable, written=lambda self, case, array: Removable.written(self, case, array + next(COUNT))
    ),
}


def check(made, folder):
    check_dataset(made(folder), other=made(folder, train=9))


@pytest.mark.parametrize(
    "sound",
    [TinyDataset, Removable, each(patient=lambda case: None)],
    ids=["plain", "removes", "no patients"],
)
def test_a_sound_dataset_passes(sound, tmp_path):
    check(sound, tmp_path)


@pytest.mark.parametrize("message", MUTANTS)
def test_a_dataset_that_breaks_a_clause_is_caught(message, tmp_path):
    with pytest.raises(AssertionError, match=message):
        check(MUTANTS[message], tmp_path)
