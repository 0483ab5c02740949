import dataclasses
import itertools

import nibabel
import numpy as np
import pytest
from evidcore_testing import TinyDataset, check_dataset

from evidcore.case import Finding, MaskRef, Query, Question, Report, Span, VolumeRef
from evidcore.volume import read, read_mask


class Eager(TinyDataset):
    def cases(self, split):
        return list(super().cases(split))


class Changed(TinyDataset):
    """The sound dataset with `change` made to each case."""

    def cases(self, split):
        return map(self.change, super().cases(split))


class OneName(Changed):
    def change(self, case):
        return dataclasses.replace(case, id="case")


class SharedPatient(Changed):
    def change(self, case):
        return dataclasses.replace(case, patient=f"patient-{int(case.id[5:]) % 4}")


class OwnWords(Changed):
    def change(self, case):
        return dataclasses.replace(case, findings=(Finding(name="nodules"),))


class LongSpan(Changed):
    def change(self, case):
        return dataclasses.replace(
            case, report=Report(text="No.", spans=(Span(start=0, end=9, label="normal"),)), findings=()
        )


class NoSuchOption(Changed):
    def change(self, case):
        return dataclasses.replace(
            case, questions=(Question(id="q", text="?", options=("yes", "no"), answer=2),)
        )


class OtherOptionHolds(Changed):
    def change(self, case):
        question = Question(id="q", text="?", options=("yes", "no"), answer=0, true_options=(1,))
        return dataclasses.replace(case, questions=(question,))


class NoSuchMask(Changed):
    def change(self, case):
        return dataclasses.replace(case, queries=(Query(id="q", text="Show it.", masks=("tail",)),))


class SameQuery(Changed):
    def change(self, case):
        query = Query(id="q", text="Show it.", masks=(next(iter(case.masks)),))
        return dataclasses.replace(case, queries=(query, query))


class NoVolume(Changed):
    def change(self, case):
        return dataclasses.replace(case, volumes=())


class LostVolume(Changed):
    def change(self, case):
        return dataclasses.replace(case, volumes=(VolumeRef(path="lost.nii.gz"),))


class SmallMask(Changed):
    def change(self, case):
        path = self.folder / "small.npz"
        np.savez(path, heart=np.ones((3, 4, 5), dtype=bool))
        return dataclasses.replace(case, masks={"heart": MaskRef(path=str(path), key="heart")})


class Shuffled(TinyDataset):
    turns = itertools.count()

    def cases(self, split):
        return iter(list(super().cases(split))[:: 1 if next(self.turns) % 2 else -1])


class Growing(TinyDataset):
    def cases(self, split):
        self.counts[split] += split == "train"
        return super().cases(split)


class Empty(TinyDataset):
    def cases(self, split):
        return iter(())


class NoFingerprint(TinyDataset):
    def fingerprint(self):
        return ""


class MovingFingerprint(TinyDataset):
    turns = itertools.count()

    def fingerprint(self):
        return str(next(self.turns))


class FixedFingerprint(TinyDataset):
    def fingerprint(self):
        return "tiny"


class Removable(TinyDataset):
    """Every finding can be taken out of the volumes: its voxels become water."""

    def without(self, case, finding):
        if case.state_of(finding) != "present":
            return case.volumes
        volume = read(case.volumes[0])
        mask = read_mask(case.masks[finding], like=volume)
        return (self.written(case, np.where(mask, 0, volume.array)),)

    def written(self, case, array, step_mm=5.0):
        path = self.folder / f"{case.id}-without-{next(counts)}.nii.gz"
        nibabel.save(nibabel.Nifti1Image(array.transpose(2, 1, 0), np.diag([-2.0, -2.0, step_mm, 1.0])), path)
        return VolumeRef(path=str(path))


class FewerVolumes(Removable):
    def without(self, case, finding):
        return super().without(case, finding)[1:]


class MovedGrid(Removable):
    def written(self, case, array):
        return super().written(case, array, step_mm=4.0)


class OtherIntensity(Removable):
    def without(self, case, finding):
        return tuple(dataclasses.replace(ref, intensity="arbitrary") for ref in case.volumes)


class NothingRemoved(Removable):
    def without(self, case, finding):
        return case.volumes


class AbsentRemoved(Removable):
    def without(self, case, finding):
        return (self.written(case, read(case.volumes[0]).array - 1),)


class OtherNoise(Removable):
    def written(self, case, array):
        return super().written(case, array + next(counts))


counts = itertools.count()


def check(mutant, folder):
    check_dataset(mutant(folder), other=mutant(folder, train=9))


def test_a_sound_dataset_passes(tmp_path):
    check(TinyDataset, tmp_path)


def test_a_dataset_that_removes_findings_passes(tmp_path):
    check(Removable, tmp_path)


def test_cases_without_patients_pass(tmp_path):
    class NoPatients(Changed):
        def change(self, case):
            return dataclasses.replace(case, patient=None)

    check(NoPatients, tmp_path)


@pytest.mark.parametrize(
    ("mutant", "message"),
    [
        (Eager, r"Eager breaks its contract: cases come lazily. cases\('train'\) gave a list"),
        (OneName, "ids are unique over all splits. 'case' is in train and train"),
        (SharedPatient, "no patient is in two splits. 'patient-0' is in train and validation"),
        (OwnWords, r"findings are of the declared vocabulary. got 'nodules' \(case 'case-0'\)"),
        (LongSpan, r"spans lie inside their report. got 0\.\.9 in 3 characters \(case 'case-0'\)"),
        (NoSuchOption, r"answers lie among their options. got \[2\] for 2 options of 'q' \(case 'case-0'\)"),
        (OtherOptionHolds, r"the answer is among the options that hold. answer 0 is not in \(1,\) of 'q'"),
        (NoSuchMask, r"queries mean masks of their case. 'q' names \['tail'\] \(case 'case-0'\)"),
        (SameQuery, r"queries have ids of their own. got \['q', 'q'\] \(case 'case-0'\)"),
        (NoVolume, r"a case has volumes. got none \(case 'case-0'\)"),
        (LostVolume, r"volumes can be read. case 'case-0' raised DataError: lost\.nii\.gz: "),
        (SmallMask, r"masks lie on the grid .* mask 'heart' of case 'case-0' raised .*shape \(3, 4, 5\)"),
        (Shuffled, r"cases come twice the same. train: 8, then 8, \['case-\d', "),
        (Growing, "cases come twice the same. train: 9, then 10"),
        (Empty, "there are cases. got none in any split"),
        (NoFingerprint, "the fingerprint is a text. got ''"),
        (MovingFingerprint, "the fingerprint stays. '0', then '1'"),
        (FewerVolumes, r"as many volumes. got 0 for 1 \(case 'case-0' without 'lung nodule'\)"),
        (MovedGrid, r"the grid stays. volume 0: .* of 4x2x2 mm .*the case's .* of 5x2x2 mm"),
        (OtherIntensity, "the intensity stays. got 'arbitrary', the case has 'hu'"),
        (NothingRemoved, r"and only there. all voxels are the case's .* without 'lung nodule'"),
        (AbsentRemoved, r"and only there. not all voxels are the case's .* without 'pleural effusion'"),
        (OtherNoise, r"removed twice the same. voxels differ \(case 'case-0' without 'lung nodule'\)"),
        (FixedFingerprint, "other cases have another fingerprint. both are 'tiny'"),
    ],
)
def test_a_dataset_that_breaks_a_clause_is_caught(mutant, message, tmp_path):
    with pytest.raises(AssertionError, match=message):
        check(mutant, tmp_path)
