"""DICOM by way of the core: what is recognised, which files stand behind it, what the caches make of it."""

import shutil

import numpy as np
import pytest
import SimpleITK
from evidcore_plugin_dicom.dicom import Dicom
from evidcore_plugin_dicom.nrrd import Nrrd
from read_scans import SHAPE, scan, simpleitk_series

from evidcore.api import DataError, MaskRef, VolumeRef, read, read_mask
from evidcore.data import content_hash, save_mask, volume_cache
from evidcore.data.files import files_of, format_of
from evidcore.data.placement import TILT_LIMIT_DEGREES, tilt_degrees

VALUES = np.zeros((12, 220, 200), np.int16)  # 1.06 MB: large enough for the cache


LESION = np.zeros(SHAPE, bool)
LESION[1, 2, 3:], LESION[-1, 0, 0] = True, True


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("EVID_CACHE", str(tmp_path / "cache"))


def test_dicom_is_recognised_by_its_content_and_by_its_ending(write_series, tmp_path):
    folder = write_series(scan())
    shutil.copy(folder / "99.dcm", tmp_path / "IM0001")
    shutil.copy(folder / "99.dcm", tmp_path / "99.ima")
    for path in (folder, folder / "99.dcm", tmp_path / "IM0001", tmp_path / "99.ima"):
        assert isinstance(format_of(str(path)), Dicom), path
    for name in ("a.nrrd", "a.seg.nrrd", "a.NHDR"):
        (tmp_path / name).write_bytes(b"x")
        assert isinstance(format_of(str(tmp_path / name)), Nrrd)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("no image")
    with pytest.raises(DataError, match=r"notes: is a folder that no format recognises"):
        format_of(str(tmp_path / "notes"))
    (tmp_path / "b.dcm").write_text("no image")
    for ask in (read, lambda ref: content_hash(ref.path)):
        with pytest.raises(DataError, match=r"b\.dcm: is named like DICOM, and its content is none"):
            ask(VolumeRef(path=str(tmp_path / "b.dcm")))


def test_the_files_of_a_series_are_all_in_its_folder(write_series):
    folder = write_series(scan())
    (folder / ".hidden").write_bytes(b"x")
    (folder / "inside").mkdir()
    files = [folder / f"{number}.dcm" for number in (96, 97, 98, 99)]
    assert files_of(str(folder)) == files
    assert files_of(str(folder / "97.dcm")) == files, "one image stands for its series"
    segments = {"SOPClassUID": "1.2.840.10008.5.1.4.1.1.66.4"}
    whole = write_series(scan(), "whole", values=lambda number: segments) / "97.dcm"
    assert files_of(str(whole)) == [whole], "a file that is whole stands alone"


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


@pytest.mark.parametrize("ask", [read, volume_cache.read, lambda ref: volume_cache.get_or_put(ref).volume()])
def test_series_of_one_folder_never_stand_in_for_each_other(write_series, tmp_path, ask):
    flat, values = tmp_path / "flat", {"1.2.3": 100, "1.2.4": 700}
    flat.mkdir()
    for series, value in values.items():
        for file in write_series(np.full_like(VALUES, value), series, series=series).iterdir():
            shutil.copy(file, flat / f"{series}-{file.name}")
    for series, value in [*values.items()] * 2:
        assert np.unique(ask(VolumeRef(path=str(flat / f"{series}-99.dcm"))).array).tolist() == [value]


@pytest.mark.parametrize("axes", ["LPS", "PIL"])
def test_a_mask_of_a_series_lies_over_it_in_another_reader(write_series, tmp_path, axes):
    folder = write_series(scan(), axes=axes)
    ref = VolumeRef(path=str(folder))
    save_mask(LESION, ref, tmp_path / "m.nii.gz")
    image, mask = simpleitk_series(folder), SimpleITK.ReadImage(str(tmp_path / "m.nii.gz"))
    over = SimpleITK.GetArrayFromImage(
        SimpleITK.Resample(mask, image, SimpleITK.Transform(), SimpleITK.sitkNearestNeighbor)
    )
    assert set(SimpleITK.GetArrayFromImage(image)[over == 1]) == set(scan()[LESION])
    np.testing.assert_array_equal(read_mask(MaskRef(path=str(tmp_path / "m.nii.gz")), read(ref)), LESION)


def test_a_series_under_a_tilted_gantry_leans(write_series):
    folder = write_series(
        np.add.outer(np.arange(20), np.zeros((12, 22), int)).astype(np.int16),
        spacing_mm_zyx=(2.5, 1.0, 1.0),
        # images upright, each 0.8 mm behind the last: the scanner's table moves along z, the gantry leans
        values=lambda number: {"ImagePositionPatient": [0, 0.8 * number, 2.5 * number]},
    )
    ref = VolumeRef(path=str(folder))
    with pytest.raises(DataError, match=r"series: the voxel axes are sheared, 17\.7° off the body axes; at"):
        read(ref)
    volume = read(VolumeRef(path=str(folder), tilted="resample"))
    assert volume.spacing_mm_zyx == pytest.approx((np.hypot(2.5, 0.8), 1.0, 1.0))
    assert tilt_degrees(volume.geometry) < 1e-6 < TILT_LIMIT_DEGREES
