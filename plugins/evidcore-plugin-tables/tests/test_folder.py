import logging
import os
import shutil
import tomllib
from pathlib import Path

import nibabel
import numpy as np
import pytest
import tables_home
from evidcore_plugin_tables.case_reading import content_mark
from evidcore_plugin_tables.folder import Folder
from evidcore_plugin_tables.folder_table import mask_ref
from evidcore_testing.checks_dataset import check_dataset
from tables_home import SECRET, refusal

from evidcore.api import DataError, EncoderInput, Finding, MaskRef, prepare, read, read_mask
from evidcore.builtin.views import Slices

TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

ROWS: list[dict[str, str]] = [
    {"id": f"c{number}", "volume": f"scans/c{number}.nii.gz", "patient": f"p{number // 2}", "split": split}
    for number, split in enumerate(["train", "train", "train", "train", "validation", "validation", "test"])
]


class Home(tables_home.Home):
    """A data folder beside the recipe, with its table."""

    use, path, table = "folder", "data", "cases.csv"

    def scan(self, name: str, value: int = 0) -> None:
        array = np.full((6, 5, 4), value, np.int16)
        array[0, 0, 0] = 100
        super().scan(name, array)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path)
    (home.data / "scans").mkdir()
    for number, row in enumerate(ROWS):
        home.scan(row["volume"], number)
    home.csv(ROWS)
    return home


def changed(number: int, **cells: str) -> list[dict[str, str]]:
    return [row | cells if index == number else row for index, row in enumerate(ROWS)]


def test_the_dataset_keeps_its_contract(home):
    home.csv(changed(0, patient="p9"), "other.csv")
    check_dataset(home.dataset(), other=home.dataset(table="other.csv"))


def test_a_row_says_everything_about_its_case(home):
    rows = changed(0, report="  There is no nodule, anywhere. ", nodule="0", effusion="1", cyst="-1", scar="")
    home.csv(rows)
    findings = ("effusion", "nodule", "cyst", "scar")
    case = next(home.dataset(findings=findings, intensity="arbitrary").cases("train"))
    assert case.patient == "p0"
    assert case.volumes[0].intensity == "arbitrary"
    assert case.report.text == "There is no nodule, anywhere."
    assert case.findings == (
        Finding(name="effusion", state="present"),
        Finding(name="nodule", state="absent"),
        Finding(name="cyst", state="uncertain"),
    )
    assert case.state_of("scar") is None
    second = list(home.dataset().cases("train"))[1]
    assert second.report is None


def test_columns_of_other_names_and_several_volumes(home):
    rows = [{"case": "a", "files": "scans/c0.nii.gz; scans/c1.nii.gz", "who": "x", "part": "train"}]
    home.csv(rows, "mine.csv")
    names = {"id_column": "case", "volume_column": "files", "patient_column": "who", "split_column": "part"}
    (case,) = home.dataset(table="mine.csv", **names).cases("train")
    assert [Path(ref.path).name for ref in case.volumes] == ["c0.nii.gz", "c1.nii.gz"]
    assert [read(ref).array.flat[-1] for ref in case.volumes] == [0, 1]


def test_unknown_patients_stay_unknown(home):
    home.csv([{key: row[key] for key in ("id", "volume", "split")} for row in ROWS])
    assert {case.patient for case in home.dataset(patient_column="").cases("train")} == {None}


def test_masks_come_from_the_table_and_from_patterns(home):
    labels = np.zeros((4, 5, 6), np.uint8)
    labels[1, 1, 1], labels[2, 2, 2] = 5, 7
    for row in ROWS:
        tables_home.Home.scan(home, f"{row['id']}-organs.nii.gz", labels.transpose(2, 1, 0).copy())
    np.savez(home.data / "lesions.npz", one=np.ones((4, 5, 6), bool))
    home.csv(changed(0, masks="lesion = lesions.npz#one; body=c0-organs.nii.gz"))
    case = next(home.dataset(masks={"liver": "{id}-organs.nii.gz#5"}).cases("train"))
    data = str(home.data)
    assert case.masks == {
        "lesion": MaskRef(path=f"{data}/lesions.npz", key="one"),
        "body": MaskRef(path=f"{data}/c0-organs.nii.gz"),
        "liver": MaskRef(path=f"{data}/c0-organs.nii.gz", label=5),
    }
    counts = {name: int(read_mask(ref, read(case.volumes[0])).sum()) for name, ref in case.masks.items()}
    assert counts == {"lesion": 120, "body": 2, "liver": 1}


def test_series_arrays_and_structure_sets_are_listed_like_files(home, write_series):
    array = np.arange(120, dtype=np.int16).reshape(4, 5, 6)
    folder = write_series(array)
    np.savez(home.data / "scans/both.npz", ct=array, other=array + 1)
    usual = {"patient": "p", "split": "train"}
    home.csv([
        usual | {"id": "a", "volume": str(folder), "masks": "x=RS.dcm#large tumour"},
        usual | {"id": "b", "volume": f"{folder}#1.2.3", "masks": "x=SEG.dcm#2"},
    ])
    for name in ("RS.dcm", "SEG.dcm"):
        (home.data / name).touch()
    dataset = home.dataset()
    first, second = dataset.cases("train")
    assert first.masks == {"x": MaskRef(path=f"{home.data}/RS.dcm", key="large tumour")}
    assert second.masks == {"x": MaskRef(path=f"{home.data}/SEG.dcm", label=2)}
    with pytest.raises(DataError, match="a label is a whole number, got "):
        mask_ref(f"organs.nii.gz#{'1' * 5000}", home.data)
    assert second.volumes[0].key == "1.2.3"
    for case in (first, second):
        np.testing.assert_array_equal(read(case.volumes[0]).array, array)
    before = dataset.fingerprint()
    (folder / "98.dcm").write_bytes((folder / "98.dcm").read_bytes() + b"\0\0")
    assert home.dataset().fingerprint() != before, "a changed image changes the set"
    home.csv([usual | {"id": "c", "volume": "scans/both.npz#other"}])
    (case,) = home.dataset(axes="SPL", spacing_mm_zyx=(3.0, 2.0, 1.0), missing="skip").cases("train")
    np.testing.assert_array_equal(read(case.volumes[0]).array, array + 1)


def test_a_mark_in_a_files_own_name_separates_nothing(home):
    paths = [f"{home.data}/{name}" for name in ("CT#1.nii.gz", "a;b.nii.gz", "L#1.npz")]
    for path in paths[:2]:
        home.scan(path, 0)
    np.savez(paths[2], one=np.ones((6, 5, 4), bool))
    usual = {"patient": "p", "split": "train"}
    masks = "label=CT#1.nii.gz#5; whole=CT#1.nii.gz; key=L#1.npz#a#b"
    home.csv([
        usual | {"id": "a", "volume": "CT#1.nii.gz", "masks": masks},
        usual | {"id": "b", "volume": "a;b.nii.gz"},
    ])
    first, second = home.dataset(missing="skip").cases("train")
    assert [case.volumes[0].path for case in (first, second)] == paths[:2]
    assert first.volumes[0].key is None
    assert first.masks == {
        "label": MaskRef(path=paths[0], label=5),
        "whole": MaskRef(path=paths[0]),
        "key": MaskRef(path=paths[2], key="a#b"),
    }


def test_what_the_files_leave_out_is_said_once_for_all(home):
    leaning = np.array([[-1.0, 0, 0, 0], [0, -1.0, -0.5, 0], [0, 0, 2.0, 0], [0, 0, 0, 1]])
    image = nibabel.Nifti1Image(np.full((6, 5, 4), 1000, np.int16), leaning)
    nibabel.save(image, home.data / "scans/c0.nii.gz")
    home.csv(ROWS[:1])
    assert "the voxel axes are sheared, 14.0° off" in refusal(home.dataset(missing="skip", max_missing=0))
    options = {"rescale": (1.0, -1024.0), "spacing_mm_zyx": (3.0, 2.0, 1.0), "tilted": "resample"}
    (case,) = home.dataset(missing="skip", **options).cases("train")
    volume = read(case.volumes[0])
    assert volume.spacing_mm_zyx == pytest.approx((3.0, 2.0, 1.0))
    assert volume.array.max() == -24
    assert home.dataset(**options).fingerprint() != home.dataset().fingerprint()


def test_the_fingerprint_changes_with_table_files_and_options(home):
    path = home.data / "scans/c0.nii.gz"
    before = home.dataset().fingerprint()
    assert home.dataset(findings=()).fingerprint() == before
    seen = {before, home.dataset(intensity="arbitrary").fingerprint()}
    facts = path.stat()

    def exchange():
        path.write_bytes(path.read_bytes()[:-1] + b"?")  # another scan of its size, its time kept
        os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))

    for change in (lambda: home.csv(ROWS[::-1]), exchange, path.unlink):
        change()
        seen.add(home.dataset().fingerprint())
    assert len(seen) == 5


@pytest.mark.parametrize("place", [0, 1 << 21, -1])
def test_a_large_file_that_is_packed_or_differs_in_its_middle_has_another_mark(tmp_path, place):
    path = tmp_path / "scan.nii"
    content = bytearray(1 << 22)
    path.write_bytes(content)
    before = content_mark(path)
    content[place] = 1
    path.write_bytes(content)
    assert (content_mark(path) != before) == (place != 0)  # a scan that is not packed is looked at in parts


def test_the_fingerprint_does_not_depend_on_where_the_folder_lies(home, tmp_path):
    before = home.dataset().fingerprint()
    shutil.copytree(home.folder / "data", tmp_path / "moved" / "data", copy_function=shutil.copyfile)
    assert Folder(tmp_path / "moved", tmp_path, path="data").fingerprint() == before


@pytest.fixture
def damaged(home: Home) -> Home:
    """The scan of c1 is missing and that of c2 broken."""
    (home.data / "scans/c1.nii.gz").unlink()
    path = home.data / "scans/c2.nii.gz"
    path.write_bytes(path.read_bytes()[:-6])
    return home


def test_missing_and_broken_volumes_are_left_out_counted_and_logged(damaged, caplog):
    with caplog.at_level(logging.WARNING):
        dataset = damaged.dataset(missing="skip")
        ids = [case.id for case in dataset.cases("train")]
    assert ids == ["c0", "c3"], "no other case takes the place of one left out"
    reasons = {"c1": "there is no such file", "c2": "the gzip stream ends too early"}
    assert list(dataset.left_out["train"]) == list(reasons)
    for (name, reason), message in zip(reasons.items(), caplog.messages, strict=True):
        assert reason in dataset.left_out["train"][name]
        assert f"case '{name}' is left out: " in message
        assert reason in message


def test_more_left_out_cases_than_allowed_stop(damaged):
    message = refusal(damaged.dataset(missing="skip", max_missing=1))
    assert "2 cases of split 'train' cannot be used, at most max_missing = 1 may be" in message
    assert "left out: c1, c2" in message
    assert "the gzip stream ends too early" in message


def test_a_missing_column_is_named_with_the_nearest(home):
    home.csv([{key.replace("patient", "patients"): cell for key, cell in row.items()} for row in ROWS])
    message = refusal(home.dataset())
    assert "cases.csv: has no column 'patient'. Did you mean 'patients'? It has: id, volume, pat" in message
    home.csv(ROWS)
    assert "has no column 'nodule'." in refusal(home.dataset(findings=("nodule",)))


@pytest.mark.parametrize(("row", "cells", "options", "shown"), TABLE["cells"])
def test_a_bad_cell_is_named(home, row, cells, options, shown):
    home.csv(changed(row, **cells))
    assert shown in refusal(home.dataset(**options))


@pytest.mark.parametrize("option", ["report_column", "masks_column"])
def test_a_column_that_is_named_must_be_there(home, option):
    assert next(iter(home.dataset().cases("train"))).report is None  # absent under its own name
    home.csv([row | {"Findings": "Clear."} for row in ROWS])
    said = refusal(home.dataset(**{option: "Findngs"}))
    assert "has no column 'Findngs'. Did you mean 'Findings'?" in said


@pytest.mark.parametrize("cells", [
    {"split": SECRET}, {"volume": SECRET}, {"masks": SECRET}, {"masks": f"a=b.nii.gz#{SECRET}"},
    {"id": SECRET}, {"patient": SECRET},
])  # fmt: skip
def test_long_cells_are_told_by_their_length_alone(home, cells):
    home.csv(changed(0, **cells))
    said = refusal(dataset := home.dataset())
    assert "got a text of 78 characters" in said or "has split a text of 78 characters" in said
    assert "Miller" not in said
    assert not any("Miller" in f"{case.id} {case.patient}" for case in dataset.listed("train"))


def test_real_scans_go_from_the_table_to_what_an_encoder_is_given(home, real_data):
    scans = real_data / "ibsi_validation"
    names = sorted(path.name for path in scans.glob("STS_*"))
    splits = [*["train"] * (len(names) - 2), "validation", "test"]
    files = [str(scans / name / "CT_image.nii.gz") for name in names]
    keys = ("id", "volume", "patient", "split")
    home.csv([dict(zip(keys, row, strict=True)) for row in zip(names, files, names, splits, strict=True)])
    dataset = home.dataset(masks={"tumour": str(scans / "{id}" / "CT_mask.nii.gz")}, missing="skip")
    check_dataset(dataset, volumes_per_split=1)
    spec = EncoderInput(size_zyx=(8, 64, 64), spacing_mm_zyx=None, windows=((-160.0, 240.0),), any_depth=True)
    view = Slices(slices=2)
    for part in (part for case in dataset.cases("test") for part in view.render(case)[1::2]):
        pixels = prepare(part.crop, spec, view.size_zyx(part, spec))
        assert pixels.shape == (1, 1, 64, 64)
        assert pixels.std() > 0.05
