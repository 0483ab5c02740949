"""Which files stand behind a path: their hash, their state, and what is remembered for it."""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path

import nrrd
import numpy as np
import pytest
from pydicom.dataset import Dataset

from evidcore.case import VolumeRef
from evidcore.errors import DataError
from evidcore.volume import content_hash, file_state, read
from evidcore.volume.content import volume_key
from evidcore.volume.formats import files_of, format_of
from evidcore.volume.usable import why_unusable


def scan() -> np.ndarray:
    return np.arange(120, dtype=np.int16).reshape(4, 5, 6)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("EVID_CACHE", str(tmp_path / "cache"))


def test_formats_are_told_by_name_and_dicom_by_content(write_series, tmp_path):
    folder = write_series(scan())
    shutil.copy(folder / "99.dcm", tmp_path / "IM0001")
    assert format_of(str(folder)) == format_of(str(tmp_path / "IM0001")) == "dicom"
    for name, kind in {
        "a.NII.GZ": "nifti",
        "a.nii": "nifti",
        "a.nrrd": "nrrd",
        "a.seg.nrrd": "nrrd",
        "a.nhdr": "nrrd",
        "a.npz": "array",
        "a.JPEG": "picture",
    }.items():
        (tmp_path / name).write_bytes(b"x")
        assert format_of(str(tmp_path / name)) == kind


def test_the_files_of_a_series_are_all_in_its_folder(write_series):
    folder = write_series(scan())
    (folder / ".hidden").write_bytes(b"x")
    (folder / "inside").mkdir()
    files = [folder / f"{number}.dcm" for number in (96, 97, 98, 99)]
    assert files_of(str(folder)) == files
    assert files_of(str(folder / "97.dcm")) == files, "one image stands for its series"


def test_a_file_that_is_whole_stands_alone(write_series, write, tmp_path):
    def change(image: Dataset, number: int) -> None:
        image.SOPClassUID = "1.2.840.10008.5.1.4.1.1.66.4"

    folder = write_series(scan(), change=change)
    assert files_of(str(folder / "97.dcm")) == [folder / "97.dcm"]
    path = write(scan())
    assert files_of(str(path)) == [path]


def test_the_hash_of_a_series_is_that_of_its_bytes_whatever_their_names(write_series, tmp_path):
    folder = write_series(scan())
    before = content_hash(folder)
    assert content_hash(folder / "98.dcm") not in {before, content_hash(folder / "99.dcm")}, (
        "an image means its own series, of several in the folder"
    )
    other = tmp_path / "other"
    other.mkdir()
    for number, file in enumerate(sorted(folder.iterdir())):
        shutil.copy(file, other / f"{9 - number}.ima")
    assert content_hash(other) == before
    (other / "8.ima").write_bytes((folder / "99.dcm").read_bytes())
    assert content_hash(other) != before
    (folder / "97.dcm").unlink()
    assert content_hash(folder) not in {before, content_hash(other)}


def test_a_changed_file_within_a_series_changes_its_state(write_series):
    folder = write_series(scan())
    before = file_state(str(folder))
    assert before is not None
    assert len(before) == 4
    assert file_state(str(folder)) == before
    os.utime(folder / "98.dcm", ns=(1, 1))
    assert file_state(str(folder)) != before
    assert file_state(str(folder / "gone.dcm")) is None


def test_a_verdict_on_a_series_is_asked_again_when_one_of_its_files_changes(write_series, tmp_path):
    folder = write_series(scan())
    ref = VolumeRef(path=str(folder))
    assert why_unusable(ref, tmp_path / "cache") is None
    (folder / "97.dcm").unlink()
    reason = why_unusable(ref, tmp_path / "cache")
    assert reason is not None
    assert "1 of 4 images are missing" in reason


def test_a_format_that_is_not_read_is_named_with_those_that_are(tmp_path):
    (tmp_path / "a.mha").write_bytes(b"x" * 500)
    for ask in (format_of, files_of, content_hash):
        with pytest.raises(DataError) as caught:
            ask(str(tmp_path / "a.mha"))
        message = str(caught.value)
        assert message.startswith(f"{tmp_path}/a.mha: is no format that is read, its ending is '.mha'")
        assert (
            ".nii, .nii.gz, .nrrd, .nhdr, .npy, .npz, .png, .jpg, .jpeg, a DICOM file, and a folder"
            in message
        )


def test_the_same_scan_in_every_format_is_the_same_volume(write, write_series, tmp_path):
    nrrd.write(
        str(tmp_path / "a.nrrd"),
        scan().T,
        {"space": "LPS", "space directions": np.diag([1.0, 2.0, 3.0]), "space origin": [0, 0, 0]},
    )
    np.save(tmp_path / "a.npy", scan())
    refs = [
        VolumeRef(path=str(write(scan(), axes="RAS"))),
        VolumeRef(path=str(write_series(scan(), axes="PIL"))),
        VolumeRef(path=str(tmp_path / "a.nrrd")),
        VolumeRef(path=str(tmp_path / "a.npy"), axes="SPL", spacing_mm_zyx=(3.0, 2.0, 1.0)),
    ]
    volumes = [read(ref) for ref in refs]
    for volume in volumes:
        np.testing.assert_array_equal(volume.array, scan())
        assert volume.array.dtype == np.int16
        assert volume.array.flags.c_contiguous
        assert volume.geometry.fits(volumes[0].geometry)


def test_a_folder_named_like_a_file_is_taken_for_what_it_is(tmp_path):
    (tmp_path / "a.nii.gz").mkdir()
    with pytest.raises(DataError, match=r"a\.nii\.gz: is a folder without DICOM images"):
        read(VolumeRef(path=str(Path(tmp_path) / "a.nii.gz")))


@pytest.mark.parametrize("name", ["a" * 300 + ".nii", "a" * 300])
def test_a_path_that_the_system_refuses_is_named(tmp_path, name):
    for ask in (format_of, files_of, content_hash):
        with pytest.raises(
            DataError, match=r"a: cannot be read \(File name too long\)|nii: cannot be read \("
        ):
            ask(str(tmp_path / name))
    assert file_state(str(tmp_path / name)) is None


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read anything")
@pytest.mark.parametrize("ending", ["nii", "nii.gz", "nrrd", "npy", "npz", "png", "dcm", "folder"])
def test_a_file_without_rights_is_named(write, write_series, tmp_path, ending):
    path = tmp_path / f"a.{ending}"
    if ending in {"nii", "nii.gz"}:
        write(scan(), path.name)
    elif ending == "folder":
        write_series(scan(), path.name)
    else:
        path.write_bytes(b"x")
    path.chmod(0)
    ref = VolumeRef(path=str(path), intensity="arbitrary", axes="SPL" if ending in {"npy", "npz"} else None)
    ref = dataclasses.replace(ref, spacing_mm_zyx=(1.0, 1.0, 1.0))
    for ask in (read, volume_key):
        with pytest.raises(DataError, match=f"a.{ending}: .*Permission denied"):
            ask(ref)
    path.chmod(0o700)
