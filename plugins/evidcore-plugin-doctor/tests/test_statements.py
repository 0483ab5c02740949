"""Two statements of one thing: each contradiction is planted among sound ones, and both are quoted."""

import csv
import dataclasses
import re
import tomllib
from pathlib import Path

import nibabel
import numpy as np
import pytest
from evidcore_plugin_dicom.phantom import write_series
from evidcore_plugin_doctor.answers import contradictions
from evidcore_plugin_doctor.fault import CHECKS, EXPLAINED_BY, Fault
from evidcore_plugin_doctor.statements import unlike_files, unlike_patients, without_value
from evidcore_plugin_phantoms.chest import PhantomChest
from evidcore_plugin_reports.findings import CT_RATE_FINDINGS
from scipy import ndimage

from evidcore.api import Case, Finding, MaskRef, Question, Report, VolumeRef

TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def case(number, report="", states=(), file=None, **more):
    named = [(*name.partition("@")[::2], state) for name, state in dict(states).items()]
    findings = tuple(Finding(name=name, side=side or None, state=state) for name, side, state in named)
    more = {"id": f"c{number}", "patient": f"P{number}x", "findings": findings} | more
    volumes = (VolumeRef(path=f"/data/{file or more['id'] + '.nii'}"),)
    return Case(volumes=volumes, report=Report(text=report) if report else None, **more)


@pytest.mark.parametrize(("report", "label", "state", "said"), TABLE["labels"])
def test_a_label_is_compared_with_the_plain_sentences_of_its_report(report, label, state, said):
    faults = list(contradictions(case(1, report, {label: state})))
    assert [(fault.check, fault.case) for fault in faults] == ([("label", "c1")] if said else [])
    if said:
        assert f"label {label!r} says {state}" in faults[0].text
        assert said in faults[0].text


@pytest.mark.parametrize(("states", "report", "asked", "said"), TABLE["answers"])
def test_answers_are_compared_with_each_other_and_with_labels_and_report(states, report, asked, said):
    asked = [{"id": f"q{number}", **item} for number, item in enumerate(asked)]
    questions = [Question(**item) for item in asked if "options" in item]
    notes = {"open_questions": [item for item in asked if "answers" in item]}
    faults = list(contradictions(case(1, report, states, questions=questions, notes=notes)))
    assert [(fault.check, fault.case) for fault in faults] == ([("label", "c1")] if said else [])
    assert not said or said in faults[0].text, faults


class Counted(str):
    """A text that counts the characters that are copied of it."""

    copied = 0

    def __getitem__(self, key):
        Counted.copied += len(piece := super().__getitem__(key))
        return piece


def test_reading_a_report_grows_as_the_report_does():
    def copied(count):
        before, report = Counted.copied, Report(text=Counted("Findings\nNo effusion.\n" * count))
        item = dataclasses.replace(case(1, "", {"effusion": "present"}), report=report)
        assert len(list(contradictions(item))) == 1
        return Counted.copied - before

    assert copied(200) <= 2.1 * copied(100)


@pytest.mark.slow
def test_no_label_of_the_real_reports_is_a_false_alarm(real_data):
    with (real_data / "ctrate_reports/train.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for number, row in enumerate(rows):
        states = {n: "present" if row[n.capitalize()] == "1" else "absent" for n in CT_RATE_FINDINGS}
        assert not list(contradictions(case(number, row["report_text"], states))), number


NODULE = {"nodule": "present"}
ODD_FILES = [  # of the last of 7 cases: split, what is odd of it, what both statements are
    ("test", {"file": "train/P6x/c6.nii"}, r"'train' in its path says train, its row test; 6 of 7"),
    ("train", {"file": "train/P3x/c6.nii"}, r"'p3x' in .* says patient 'P3x', its row patient 'P6x'; 6"),
    ("train", {"file": "train/P6x/c2.nii"}, r"'c2.nii' in its path says id 'c2', its row id 'c6'"),
    ("train", {"masks": {"a": MaskRef(path="/data/m/c2-a.nii")}}, r"'c2-a.nii' in its path says id 'c2'"),
    ("train", {"file": "train/no nodule/P6x/c6.nii"}, r"'no nodule' in .* says 'nodule' absent, its row pre"),
    ("validation", {"file": "train/P6x/c6.nii"}, None),  # many validate on part of a training folder
    ("train", {"file": "train/P9/c6.nii"}, None),  # nobody's name
]  # fmt: skip


@pytest.mark.parametrize(("split", "odd", "said"), ODD_FILES)
def test_files_are_compared_with_their_rows_where_most_agree(split, odd, said):
    def row(number, home, group):
        masks = {"a": MaskRef(path=f"/data/m/c{number}-a.nii")}
        return home, case(number, "", NODULE, f"{home}/{group}P{number}x/c{number}.nii", masks=masks)

    group = "nodule/" if "nodule" in odd.get("file", "") else ""
    cases = [row(number, "test" if number == 1 else "train", group) for number in range(6)]
    more = {"masks": {"a": MaskRef(path="/data/m/c6-a.nii")}} | odd
    cases.append((split, case(6, "", NODULE, more.pop("file", "train/P6x/c6.nii"), **more)))
    faults = list(unlike_files(cases))
    assert [(fault.check, fault.case) for fault in faults] == ([("folder", "c6")] if said else [])
    assert said is None or re.search(said, faults[0].text), faults
    assert not list(unlike_files(cases[-2:]))  # two files name nothing


@pytest.mark.parametrize(("first", "second", "before"), TABLE["patients"])
def test_sex_and_age_are_compared_among_the_scans_of_a_patient(first, second, before):
    cases = [case(number, patient="p") for number in (1, 2)]
    texts = [fault.text for fault in unlike_patients([(cases[0], "a", first), (cases[1], "b", second)])]
    ((what, now),) = second.items() if before else [("", "")]
    said = f"its {what} is {now.lower()!r} (b), that of case 'c1', the same patient, is {before} (a)."
    assert [text.partition(" Find")[0] for text in texts] == ([said] if before else [])
    assert not list(unlike_patients([(case(1), "a", first), (case(2), "b", second)]))


@pytest.mark.parametrize("patient", ["<NA>", "unknown", "Anonymised", "-"])
def test_what_is_written_for_an_empty_cell_is_told(patient):
    bad = Case(id="NaN", patient=patient, volumes=(), report=Report(text="nan\n"))
    assert [fault.check for fault in without_value(bad)] == ["id", "patient", "report"]
    assert not [*without_value(case(1))]


def test_a_table_is_compared_with_the_headers_of_its_scans(home, tools):
    def change(image, number):
        image.PatientSex, image.PatientAge, image.PatientID = "F", "045Y", "1"

    for name, cells in (("right", ("w", "46", "6 x 5.5 x 5")), ("wrong", ("M", "54", "1.5 1.5 5"))):
        write_series(home.folder / name, tools.torso(ord(name[0])), tools.SPACING_MM, change=change)
        home.add(name, volume=name, **dict(zip(("Sex", "Patient Age", "Spacing"), cells, strict=True)))
    faults, _ = home.check()
    assert [(fault.case, fault.check) for fault in faults[1:]] == [("wrong", "patient")] * 2
    assert (faults[0].case, faults[0].check) == ("wrong", "spacing")
    assert "of 6 x 5.5 x 5 mm (z, y, x), the table's column 1.5 x 1.5 x 5 mm" in faults[0].text
    assert re.search(r"its sex is 'f' \(.*wrong\), that is 'm' \(the table\)", faults[1].text)
    assert re.search(r"its age is '045y' \(.*wrong\), that is '54' \(the table\)", faults[2].text)


def test_scans_that_may_be_negatives_of_others_are_named(home, tools):
    for seed, shades in enumerate(("MONOCHROME2", "MONOCHROME1")):
        change = lambda image, number, shades=shades: image.update(  # noqa: E731
            {"Modality": "MR", "PhotometricInterpretation": shades}
        )
        write_series(home.folder / shades, tools.torso(seed), tools.SPACING_MM, change=change)
        home.add(shades, volume=shades)
    (fault,), _ = home.check(intensity="arbitrary")
    assert (fault.case, fault.check, fault.severity) == ("MONOCHROME1", "intensity", "warning")
    assert "displayed white (MONOCHROME1), as in 1 of 2 scans: it may be a negative" in fault.text


@pytest.mark.slow
def test_masks_are_compared_with_their_numbers_and_the_side_they_lie_on(home, tools):
    labels, spot = np.zeros(tools.SHAPE, np.uint8), tools.ellipsoid((20, 0, -75), (30, 30, 20))
    labels[spot] = 1  # in the right lung
    labels[tools.ellipsoid((20, 0, 75), (30, 30, 20))] = 2
    stray, other = labels.copy(), np.where(labels, labels + 6, 0)
    stray[:2, :2, :2] = 9
    linear = np.rint(ndimage.shift(labels.astype(np.float32), 0.5, order=1)).astype(np.uint8)
    for number, array in enumerate((labels, labels, labels, labels, stray, other, linear)):
        file = home.mask(f"m{number}", array)
        names = {"left nodule" if number == 3 else "nodule": f"{file}#1", "cyst": f"{file}#2"}
        text = {0: "Nodule on the left.", 1: "Nodule on the right."}.get(number, "")
        home.add(f"c{number}", tools.torso(number), masks=names, report=text)
    home.add("mirrored", tools.torso(8)[:, :, ::-1], masks={"left nodule": spot})  # its mask is no fault
    outside = ~tools.ellipsoid((0, 0, 0), (150, 90, 90))
    home.add("inverted", tools.torso(7), masks={"nodule": outside, "scan": "inverted.nii.gz"})
    faults, _ = home.check()
    for fault, (name, kind, text) in zip(
        sorted(faults, key=lambda fault: fault.case), TABLE["masks"], strict=True
    ):
        assert (fault.case, fault.kind) == (name, kind)
        assert re.search(text, fault.text), fault.text


PAIRS = [(kind, cause) for kind, causes in EXPLAINED_BY.items() for cause in causes]


@pytest.mark.parametrize(("kind", "cause"), PAIRS)
def test_what_a_fault_of_the_same_case_explains_is_not_told(kind, cause):
    def fault(name, case, other=""):
        check, _, part = name.partition("/")
        assert check in CHECKS
        return Fault(check=check, part=part, severity="error", case=case, other=other, text="")

    assert fault(kind, "a").is_explained([fault(cause, "a")])
    assert fault(kind, "a", "b").is_explained([fault(cause, "b")])
    assert not fault(kind, "a").is_explained([fault(cause, "b"), fault(cause, ""), fault(kind, "a")])
    assert not fault(kind, "a", "b").is_explained([fault(cause, "a", "c")])
    assert (cause, kind) not in PAIRS


@pytest.mark.slow
def test_a_double_intercept_is_the_only_message_of_its_case(home):
    phantoms = PhantomChest(home.folder, train_cases=6, validation_cases=1, test_cases=1)
    for number, scan in enumerate(phantoms.cases("train")):
        image = nibabel.load(scan.volumes[0].path)
        array = np.asarray(image.dataobj) - 1024 * (number % 2)  # slices, near copies, thin bodies were told
        nibabel.save(nibabel.Nifti1Image(array.astype(np.int16), image.affine), home.add(str(number)))
    assert [(fault.case, fault.kind) for fault in home.check()[0]] == [(n, "intensity/scale") for n in "135"]
