import os
import shutil
import struct
from pathlib import Path

import gdcm
import numpy as np
import pydicom
import pytest
import SimpleITK
from evidcore_plugin_dicom import headers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydicom.uid import CTImageStorage, DeflatedExplicitVRLittleEndian
from read_scans import SHAPE, assert_placed, opened, refusal, scan, simpleitk_series

from evidcore.api import DataError


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    pairs=st.permutations(["LR", "PA", "SI"]),
    flips=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    spacing=st.tuples(*[st.floats(0.3, 8.0)] * 3),
    shape=st.tuples(*[st.integers(2, 5)] * 3),
)
def test_any_orientation_of_a_series_gives_the_same_volume(write_series, pairs, flips, spacing, shape):
    axes = "".join(pair[int(flip)] for pair, flip in zip(pairs, flips, strict=True))
    spacing = tuple(round(step, 4) for step in spacing)  # DICOM writes numbers with 16 characters
    folder = write_series(scan(shape), "any", spacing, axes)
    volume = opened(folder)
    np.testing.assert_array_equal(volume.array, scan(shape))
    np.testing.assert_allclose(volume.affine, np.diag([*spacing, 1.0]), atol=1e-6)
    assert volume.array.flags.c_contiguous
    shutil.rmtree(folder)


def test_a_voxel_lies_where_simpleitk_says(write_series):
    folder = write_series(scan(), axes="PIL")
    assert_placed(opened(folder), simpleitk_series(folder))


def test_a_series_is_picked_by_its_uid(write_series, tmp_path):
    write_series(scan())
    other = write_series(scan() + 1, "other", series="1.2.4")
    for file in other.iterdir():
        shutil.copy(file, tmp_path / "series" / f"other{file.name}")
    folder = tmp_path / "series"
    assert f"{folder}: holds 2 series: 1.2.3 (CT, 4 files); 1.2.4 (CT, 4 files). Name one" in refusal(folder)
    np.testing.assert_array_equal(opened(folder, key="1.2.4").array, scan() + 1)
    assert "holds no series '1.2.5'. Did you mean '1.2.4'? It holds: 1.2.3 (" in refusal(folder, key="1.2.5")
    assert "99.dcm: belongs to series 1.2.3, not 1.2.4" in refusal(folder / "99.dcm", key="1.2.4")


def test_values_that_are_to_be_shown_white_where_they_are_low_stay_as_they_are(write_series):
    shown = lambda number: {"Modality": "MR", "PhotometricInterpretation": f"MONOCHROME{1 + number // 3}"}  # noqa: E731
    volume = opened(write_series(scan()[:3], values=shown), intensity="arbitrary")
    np.testing.assert_array_equal(volume.array, scan()[:3])
    assert volume.patient["PhotometricInterpretation"] == "MONOCHROME1"
    mixed = refusal(write_series(scan(), "mixed", values=shown), intensity="arbitrary")
    assert "the images of the series state 2 values of PhotometricInterpretation, the first two" in mixed


def test_slope_and_intercept_are_those_of_each_image(write_series):
    stored = scan(dtype=np.uint16) % 300
    scale = lambda number: {"RescaleSlope": 0.5 + number, "RescaleIntercept": -number}  # noqa: E731
    volume = opened(write_series(stored, values=scale))
    factors = np.arange(4)[:, None, None]
    np.testing.assert_allclose(volume.array, stored * (0.5 + factors) - factors)
    assert volume.array.dtype == np.float32


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint16])
def test_whole_hounsfield_units_stay_int16(write_series, dtype):
    stored = (scan() + 40).astype(dtype)
    volume = opened(write_series(stored, values=lambda number: {"RescaleIntercept": -1024}))
    assert volume.array.dtype == np.int16
    np.testing.assert_array_equal(volume.array, stored.astype(int) - 1024)


def transcoded(path: Path, syntax: int) -> None:
    """Compress a file in place with GDCM."""
    reader = gdcm.ImageReader()
    reader.SetFileName(str(path))
    assert reader.Read()
    change = gdcm.ImageChangeTransferSyntax()
    change.SetTransferSyntax(gdcm.TransferSyntax(syntax))
    change.SetInput(reader.GetImage())
    assert change.Change()
    writer = gdcm.ImageWriter()
    writer.SetFileName(str(path))
    writer.SetFile(reader.GetFile())
    writer.SetImage(change.GetOutput())
    assert writer.Write()


@pytest.mark.parametrize("dtype", [np.int16, np.uint16, np.uint8])
@pytest.mark.parametrize(
    "syntax",
    ["JPEGLosslessProcess14", "JPEGLosslessProcess14_1", "JPEGLSLossless", "JPEG2000Lossless", "RLELossless"],
)
def test_compressed_images_are_read(write_series, syntax, dtype):
    low, high = (-2000, 3000) if dtype == np.int16 else (0, 255 if dtype == np.uint8 else 65535)
    stored = np.random.default_rng(0).integers(low, high, (2, 33, 40)).astype(dtype)
    folder = write_series(stored)
    for file in folder.iterdir():
        transcoded(file, getattr(gdcm.TransferSyntax, syntax))
        assert pydicom.dcmread(file).file_meta.TransferSyntaxUID.is_compressed
    np.testing.assert_array_equal(opened(folder).array, stored)


@pytest.mark.parametrize("stored", [np.int16, np.uint16])
def test_bits_above_those_stored_do_not_count(write_series, stored):
    # old scanners keep overlays there; 12 bits of -5 and 5 with rubbish above
    value = -5 if stored == np.int16 else 5
    held = np.full(SHAPE, (value & 0x0FFF) | 0x7000, np.uint16).astype(stored)
    folder = write_series(held, values=lambda number: {"BitsStored": 12, "HighBit": 11})
    assert (opened(folder).array == value).all()


def test_files_without_preamble_and_meta_group_are_read(write_series):
    folder = write_series(scan())
    for file in folder.iterdir():
        image = pydicom.dcmread(file)
        image.preamble = None
        del image.file_meta
        image.save_as(file, implicit_vr=True, little_endian=True, enforce_file_format=False)
        assert file.read_bytes()[:2] == b"\x08\x00"
    np.testing.assert_array_equal(opened(folder).array, scan())
    np.testing.assert_array_equal(opened(folder / "99.dcm").array, scan())


def test_what_is_no_image_is_left_aside(write_series, tmp_path):
    folder = write_series(scan())
    (folder / "notes.txt").write_text("nothing")
    (folder / ".DS_Store").write_bytes(b"\x08\x00 no DICOM")
    (folder / "inside").mkdir()
    image = pydicom.dcmread(folder / "99.dcm")
    image.SOPClassUID = "1.2.840.10008.5.1.4.1.1.66.4"  # a segmentation
    image.SeriesInstanceUID = "1.2.9"
    image.save_as(folder / "seg.dcm")
    for name in ("Rows", "Columns", "PixelData"):
        delattr(image, name)
    image.SOPClassUID = "1.2.840.10008.5.1.4.1.1.481.3"  # a structure set
    image.save_as(folder / "rs.dcm")
    np.testing.assert_array_equal(opened(folder).array, scan())
    image.Modality = "RTSTRUCT"
    image.save_as(folder / "rs.dcm")
    assert "rs.dcm: holds no scan but 'RTSTRUCT'. Name the folder of the images" in refusal(folder / "rs.dcm")


@pytest.mark.parametrize("kept_bytes", [160, 200, 250, 300, 350, 400])
def test_an_image_that_is_cut_within_its_header_is_not_left_aside(write_series, kept_bytes):
    folder = write_series(scan((6, 5, 6)))
    cut = folder / "94.dcm"  # an end of the stack: its absence leaves no gap
    assert pydicom.dcmread(cut)["Rows"].file_tell > 400
    cut.write_bytes(cut.read_bytes()[:kept_bytes])
    assert refusal(folder).startswith(f"{cut}: ")
    assert refusal(folder / "99.dcm").startswith(f"{cut}: ")


@pytest.mark.parametrize(
    ("uid", "shown"),
    [(CTImageStorage, "'CT Image Storage'"), (None, "nothing"),
     ("1.2.840.10008.5.1.4.1", "'1.2.840.10008.5.1.4.1'"),
     ("1.2.840.10008.1.3.10", None),  # a DICOMDIR
     ("1.2.840.10008.5.1.4.1.1.88.11", None),  # a structured report
     ("1.2.840.10008.5.1.4.1.1.11.1", None),  # a presentation state
     ("1.2.840.10008.5.1.4.1.1.66", None),  # raw data
     ("1.3.12.2.1107.5.9.1", None)],  # Siemens, no image
)  # fmt: skip
def test_a_file_without_rows_is_left_aside_where_its_class_has_no_image(write_series, uid, shown):
    folder = write_series(scan())
    image = pydicom.dcmread(folder / "99.dcm")
    for name in ("Rows", "Columns", "PixelData", "SOPClassUID"):
        delattr(image, name)
    del image.file_meta.MediaStorageSOPClassUID
    if uid == "1.2.840.10008.1.3.10":
        image.file_meta.MediaStorageSOPClassUID = uid  # a directory has no SOPClassUID
    elif uid is not None:
        image.SOPClassUID = uid
    image.save_as(folder / "cut.dcm")
    if shown is None:
        np.testing.assert_array_equal(opened(folder).array, scan())
    else:
        said = f"{folder}/cut.dcm: lies in a DICOM folder and has no Rows, though its class is {shown}. The"
        assert f"{said} file is cut off" in refusal(folder)


def test_zeros_behind_the_voxels_are_not_read_and_files_beyond_4_gb_are_refused(write_series):
    folder = write_series(scan())
    os.truncate(folder / "99.dcm", 4 << 30)  # a sparse file: none of it lies on the disk
    np.testing.assert_array_equal(opened(folder).array, scan())
    os.truncate(folder / "99.dcm", 60 << 30)
    assert "it has 64424509440 bytes, at most 4294967296 are read" in refusal(folder)


SIZES = {"JPEG2000Lossless": (b"\xff\x4f\xff\x51", 8, ">2I"), "JPEGLSLossless": (b"\xff\xf7", 5, ">2H")}


@pytest.mark.filterwarnings("ignore:End of file reached")  # pydicom warns besides
@pytest.mark.parametrize("syntax", [None, *SIZES])
def test_images_that_are_cut_off_or_damaged_are_named(write_series, syntax):
    folder = write_series(np.random.default_rng(0).integers(0, 3000, (2, 40, 40)).astype(np.int16))
    path = folder / "99.dcm"
    if syntax:
        transcoded(path, getattr(gdcm.TransferSyntax, syntax))
    content = bytearray(path.read_bytes())
    path.write_bytes(content[: len(content) - 900])
    with pytest.raises(DataError, match=r"99\.dcm: its voxels cannot be decoded \((Explicit|JPEG)[^:]*: "):
        opened(folder)
    if syntax:
        marker, behind, form = SIZES[syntax]
        struct.pack_into(form, content, content.rindex(marker) + behind, 60000, 60000)
        path.write_bytes(content)
        with pytest.raises(
            DataError, match=r"a frame is encoded as 60000 x 60000, the header says \(40, 40\)"
        ):
            opened(folder)


def test_a_deflated_file_is_inflated_up_to_a_limit(write_series, monkeypatch):
    folder = write_series(scan())
    for file in folder.iterdir():
        image = pydicom.dcmread(file)
        image.file_meta.TransferSyntaxUID = DeflatedExplicitVRLittleEndian
        image.save_as(file)
    np.testing.assert_array_equal(opened(folder).array, scan())
    monkeypatch.setattr(headers, "MOST_INFLATED_BYTES", 300)
    assert "dcm: is no readable DICOM file (it inflates to more than 300 bytes" in refusal(folder)


def test_a_real_series_is_that_of_the_nifti_file_voxel_for_voxel(real_data):
    series = opened(real_data / "ibsi_validation_dicom/STS_019/CT/image")
    file = opened(real_data / "ibsi_validation/STS_019/CT_image.nii.gz")
    np.testing.assert_array_equal(series.array, file.array)
    assert series.geometry.apart_voxels(file.geometry) < 0.001


def test_a_real_compressed_series_is_that_of_simpleitk(real_data):
    folder = real_data / "totalsegmentator/example_ct_dicom"
    volume, image = opened(folder), simpleitk_series(folder)
    np.testing.assert_array_equal(volume.array, SimpleITK.GetArrayFromImage(image))
    np.testing.assert_allclose(volume.affine[:3, 3], image.GetOrigin()[::-1], atol=1e-6)
    np.testing.assert_allclose(volume.spacing_mm_zyx, image.GetSpacing()[::-1], atol=1e-6)


@pytest.mark.parametrize("name", ["24x38x3", "23x38x3"])
def test_a_real_file_of_many_frames_is_that_of_its_series(real_data, name):
    folder = real_data / "dcmqi" / name
    whole, series = opened(folder / "multiframe/mf.dcm"), opened(folder / "image")
    np.testing.assert_array_equal(whole.array, series.array)
    assert whole.geometry.fits(series.geometry)


def test_images_of_two_patients_are_refused_without_their_ids(write_series):
    for name in ("PatientID", "FrameOfReferenceUID"):
        two = ({name: f"SECRET-{number == 2}"} for number in range(len(scan())))
        message = refusal(write_series(scan(), name, values=lambda number, two=[*two]: two[number]))
        assert f"state 2 values of {name}, the first two in 96.dcm and 97.dcm" in message
        assert "SECRET" not in message
    folder = write_series(scan(), "one", values=lambda number: {"PatientID": "" if number == 2 else "one"})
    assert opened(folder).shape_zyx == SHAPE, "an image without a patient is passed over"


@pytest.mark.parametrize(
    ("name", "values", "modality", "is_refused"),
    [
        ("AcquisitionNumber", (1, 2), "CT", True),
        ("AcquisitionNumber", (1, 2), "MR", False),  # every other slice first, then the rest
        ("EchoTime", (2.3, 4.6), "MR", True),
        ("ContrastBolusAgent", ("", "Iohexol"), "CT", True),
    ],
)
def test_images_of_two_phases_that_lie_between_each_other_are_refused(
    write_series, name, values, modality, is_refused
):
    def written(folder, order):
        stated = lambda number: {name: values[order[number]], "Modality": modality}  # noqa: E731
        return write_series(scan((6, 3, 4)), folder, values=stated)

    intensity = "hu" if modality == "CT" else "arbitrary"
    between = written("between", (0, 1, 0, 1, 0, 1))
    if is_refused:
        message = f"2 phases or echoes lie between each other, by their {name}"
        assert message in refusal(between, intensity=intensity)
    else:
        opened(between, intensity=intensity)
    opened(written("one after the other", (0, 0, 0, 1, 1, 1)), intensity=intensity)
    opened(written("one alone", (0, 0, 1, 0, 0, 0)), intensity=intensity)
