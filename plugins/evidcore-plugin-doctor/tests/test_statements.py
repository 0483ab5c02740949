"""Two statements of one thing: each contradiction is planted among sound ones, and both are quoted."""

import re

import numpy as np
import pytest
from evidcore_plugin_dicom.phantom import write_series
from evidcore_plugin_doctor.fault import CHECKS, EXPLAINED_BY, Fault
from evidcore_plugin_doctor.statements import contradicted_files, contradicted_labels, contradicted_patients
from evidcore_plugin_reports.findings import CT_RATE_FINDINGS

from evidcore.api import Case, Finding, MaskRef, Report, VolumeRef


def case(number, report="", states=(), file=None, **more):
    findings = tuple(Finding(name=name, state=state) for name, state in dict(states).items())
    more = {"id": f"c{number}", "patient": f"P{number}x", "findings": findings} | more
    volumes = (VolumeRef(path=f"/data/{file or more['id'] + '.nii'}"),)
    return Case(volumes=volumes, report=Report(text=report) if report else None, **more)


@pytest.mark.parametrize(
    ("report", "label", "state", "said"),
    [
        ("Heart is normal. No pleural effusion.", "Pleural_Effusion", "present", "absent (sentence 2)"),
        ("Pleural effusion on the left.", "pleural effusion", "absent", "present on the left (sentence 1)"),
        ("Pleural effusion on the left.", "right pleural effusion", "present", "present on the left"),
        ("Pleural effusion on the left.", "left pleural effusion", "absent", "present on the left"),
        ("Pleural effusion on the left.", "right pleural effusion", "absent", None),
        ("No pleural effusion on the left.", "pleural effusion", "present", None),  # the other may
        ("No pleural effusion. Bilateral effusions are new.", "pleural effusion", "present", None),
        ("No change of the pleural effusion.", "pleural effusion", "absent", None),
        ("No loculated pleural effusion.", "pleural effusion", "present", None),
        ("Clinical question\nPleural effusion.", "pleural effusion", "absent", None),
        ("Is there a pleural effusion?", "pleural effusion", "absent", None),
        ("Possible pleural effusion.", "pleural effusion", "absent", None),
        ("There is no pleural effusion.", "pleural effusion", "uncertain", None),
        ("There is no pleural effusion.", "pleural effusion", "absent", None),
    ],
)  # fmt: skip
def test_a_label_is_compared_with_the_plain_sentences_of_its_report(report, label, state, said):
    faults = list(contradicted_labels(case(1, report, {label: state})))
    assert [(fault.check, fault.case) for fault in faults] == ([("label", "c1")] if said else [])
    if said:
        assert f"label {label!r} says {state}" in faults[0].text
        assert said in faults[0].text


def test_no_label_of_the_real_reports_is_a_false_alarm(real_data):
    import csv

    with (real_data / "ctrate_reports/train.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for number, row in enumerate(rows):
        states = {n: "present" if row[n.capitalize()] == "1" else "absent" for n in CT_RATE_FINDINGS}
        assert not list(contradicted_labels(case(number, row["report_text"], states))), number


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
    faults = list(contradicted_files(cases))
    assert [(fault.check, fault.case) for fault in faults] == ([("folder", "c6")] if said else [])
    assert said is None or re.search(said, faults[0].text), faults
    assert not list(contradicted_files(cases[-2:]))  # two files name nothing


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ({"sex": "M"}, {"sex": "f"}, "its sex is 'f' (b), that of case 'c1', the same patient, is 'm' (a)"),
        ({"sex": "M", "age": "061Y"}, {"sex": "male", "age": "64"}, None),
        ({"sex": "O"}, {"sex": "F"}, None),
        ({"age": "31"}, {"age": "074Y"}, "its age is '074y' (b), that of case 'c1', the same patient, is '31' (a)"),
        ({"age": "011M"}, {"age": "1"}, None),
        ({"age": "unknown"}, {"age": "60"}, None),
    ],
)  # fmt: skip
def test_sex_and_age_are_compared_among_the_scans_of_a_patient(first, second, said):
    cases = [case(number, patient="p") for number in (1, 2)]
    given = [(cases[0], "a", first), (cases[1], "b", second)]
    texts = [fault.text.partition(". Find out")[0] for fault in contradicted_patients(given)]
    assert texts == [said] * bool(said)
    apart = [(case(1), "a", first), (case(2), "b", second)]
    assert not list(contradicted_patients(apart))


def test_a_table_is_compared_with_the_headers_of_its_scans(home, tools):
    def told(image, number):
        image.PatientSex, image.PatientAge, image.PatientID = "F", "045Y", "1"

    for name, cells in (("right", ("w", "46", "6 x 5.5 x 5")), ("wrong", ("M", "54", "1.5 1.5 5"))):
        write_series(home.folder / name, tools.torso(ord(name[0])), tools.SPACING_MM, change=told)
        home.add(name, volume=name, **dict(zip(("Sex", "Patient Age", "Spacing"), cells, strict=True)))
    faults, _ = home.check()
    assert [(fault.case, fault.check) for fault in faults] == [
        ("wrong", "spacing"),
        *[("wrong", "patient")] * 2,
    ]
    assert "of 6 x 5.5 x 5 mm (z, y, x), the table's column 1.5 x 1.5 x 5 mm" in faults[0].text
    assert re.search(r"its sex is 'f' \(.*wrong\), that is 'm' \(the table\)", faults[1].text)
    assert re.search(r"its age is '045y' \(.*wrong\), that is '54' \(the table\)", faults[2].text)


def test_masks_are_compared_with_their_numbers_and_the_side_they_lie_on(home, tools):
    spot = tools.ellipsoid((20, 0, -75), (30, 30, 20))  # in the right lung
    labels = np.zeros(tools.SHAPE, np.uint8)
    labels[spot], labels[tools.ellipsoid((20, 0, 75), (30, 30, 20))] = 1, 2
    for number in range(6):
        file = home.mask(
            f"m{number}", np.where(labels, labels + 6 * (number == 5), 0) if number != 4 else labels * 1
        )
        if number == 4:
            labels[:2, :2, :2] = 9
            file = home.mask("m4", labels)
            labels[labels == 9] = 0
        names = {"left nodule" if number == 3 else "nodule": f"{file}#1", "cyst": f"{file}#2"}
        reports = {0: "Nodule on the left.", 1: "Nodule on the right."}
        home.add(f"c{number}", tools.torso(number), masks=names, report=reports.get(number, ""))
    home.add("mirrored", tools.torso(6)[:, :, ::-1], masks={"left nodule": spot})
    home.add(
        "inverted",
        tools.torso(7),
        masks={"nodule": ~tools.ellipsoid((0, 0, 0), (150, 90, 90)), "scan": "inverted.nii.gz"},
    )
    faults, _ = home.check()
    told = {(fault.case, fault.kind): fault.text for fault in faults}
    assert re.search(
        r"'nodule': the report says left, and it lies at least \d\d mm to the other",
        told.pop(("c0", "mask/place")),
    )
    assert "'left nodule': its name says left" in told.pop(("c3", "mask/place"))
    assert "labels 1 ('nodule'), 2 ('cyst'), the file holds 1, 2, 9; in 4 other files" in told.pop((
        "c4",
        "mask/stray",
    ))
    assert "labels 1 ('nodule'), 2 ('cyst'), the file holds 7, 8: none of them" in told.pop((
        "c5",
        "mask/labels",
    ))
    assert "the liver lies on the left" in told.pop(("mirrored", "orientation"))  # and its mask is no fault
    texts = [fault.text for fault in faults if fault.case == "inverted"]
    assert re.search("the scan itself.*every voxel of the volume's sides is in", " ".join(texts))
    assert told.keys() == {("inverted", "mask")}


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


def test_a_double_intercept_is_the_only_message_of_its_case(home, tools):
    from evidcore_plugin_phantoms.chest import PhantomChest

    for number, scan in enumerate(
        PhantomChest(home.folder, train_cases=6, validation_cases=1, test_cases=1).cases("train")
    ):
        import nibabel

        image = nibabel.load(scan.volumes[0].path)
        array = np.asarray(image.dataobj) - (1024 if number % 2 else 0)
        nibabel.save(
            nibabel.Nifti1Image(array.astype(np.int16), image.affine), home.folder / f"{number}.nii.gz"
        )
        home.add(str(number))
    faults, _ = home.check()
    assert [(fault.case, fault.kind) for fault in faults] == [(n, "intensity/scale") for n in "135"]
