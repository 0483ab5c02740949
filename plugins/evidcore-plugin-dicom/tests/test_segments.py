"""Segmentations on the grid of their volume."""

from pathlib import Path

import highdicom
import numpy as np
import pydicom
import pytest
import SimpleITK
from highdicom.seg import Segmentation, SegmentDescription
from pydicom.dataset import Dataset
from pydicom.sr.codedict import codes
from read_scans import opened, refused

from evidcore.api import DataError, MaskRef, read_mask

SHAPE = (6, 12, 14)
SPACING = (3.0, 2.0, 1.0)


def images_for_highdicom(folder: Path) -> list[Dataset]:
    """Return the images of a series with what the standard asks for besides."""
    images = [pydicom.dcmread(file) for file in sorted(folder.iterdir())]
    for number, image in enumerate(images, start=1):
        image.StudyInstanceUID, image.FrameOfReferenceUID = "1.2", "1.5"
        image.PatientID = image.PatientName = image.PatientSex = image.PatientBirthDate = ""
        image.StudyID = image.StudyDate = image.StudyTime = image.AccessionNumber = ""
        image.ReferringPhysicianName = image.PositionReferenceIndicator = ""
        image.SeriesNumber, image.InstanceNumber, image.SliceThickness = 1, number, 3
    return images


def segmentation(folder: Path, path: Path, masks: np.ndarray, **options) -> str:
    """Write boolean masks (image by name, row, column, segment) with highdicom as a DICOM-SEG."""
    images = images_for_highdicom(folder)
    segments = [
        SegmentDescription(
            number, name, codes.SCT.Organ, codes.SCT.Liver, highdicom.seg.SegmentAlgorithmTypeValues.MANUAL
        )
        for number, name in enumerate(("liver", "lesion")[: masks.shape[-1]], start=1)
    ]
    seg = Segmentation(
        images, np.ascontiguousarray(masks).astype(options.pop("dtype", np.uint8)),
        options.pop("kind", highdicom.seg.SegmentationTypeValues.BINARY), segments, "1.2.8", 1, "1.2.8.1", 1,
        "maker", "model", "1", "0", **options,
    )  # fmt: skip
    seg.save_as(path)
    return str(path)


@pytest.fixture
def folder(write_series) -> Path:
    return write_series(np.zeros(SHAPE, np.int16), "images", SPACING)


@pytest.fixture
def masks() -> np.ndarray:
    """Two segments that overlap; each leaves slices out."""
    held = np.zeros((*SHAPE, 2), bool)
    held[1:3, 2:9, 3:11, 0] = True
    held[2:5, 4:6, 5:14, 1] = True
    held[5, 0, 0, 1] = True
    return held


def test_segments_may_overlap_and_leave_slices_out(folder, tmp_path, masks):
    # highdicom, an implementation of its own, writes them; names of the files run against the slices
    path = segmentation(folder, tmp_path / "seg.dcm", masks[::-1])
    frames = int(pydicom.dcmread(path).NumberOfFrames)
    assert frames == 2 + 4, "empty frames are left out"
    volume = opened(folder)
    for number, name in enumerate(("liver", "lesion")):
        for pick in ({"key": name}, {"key": str(number + 1)}, {"label": number + 1}):
            np.testing.assert_array_equal(read_mask(MaskRef(path=path, **pick), volume), masks[..., number])
    assert "holds 2 segments: 1 'liver', 2 'lesion'" in refused(MaskRef(path=path), volume)
    assert "holds no segment 'live'. Did you mean 'liver'?" in refused(MaskRef(path=path, key="live"), volume)


def test_a_segmentation_of_sagittal_images_is_turned_like_its_volume(write_series, tmp_path, masks):
    folder = write_series(np.zeros(SHAPE, np.int16), "images", SPACING, "PIR")
    # images across x, the last first by name; rows run down, columns to posterior
    stored = masks.transpose(2, 0, 1, 3)[:, ::-1]
    path = segmentation(folder, tmp_path / "seg.dcm", stored)
    mask = read_mask(MaskRef(path=path, key="lesion"), opened(folder))
    np.testing.assert_array_equal(mask, masks[..., 1])


def test_a_segmentation_of_some_slices_of_its_volume_is_put_where_it_belongs(
    write_series, folder, tmp_path, masks
):
    def change(image: Dataset, number: int) -> str | None:
        return "leave out" if number not in {2, 3} else None

    part = write_series(np.zeros(SHAPE, np.int16), "part", SPACING, change=change)
    path = segmentation(part, tmp_path / "seg.dcm", masks[[3, 2], ..., 1:])
    expected = masks[..., 1].copy()
    expected[[0, 1, 4, 5]] = False
    np.testing.assert_array_equal(read_mask(MaskRef(path=path), opened(folder)), expected)
    message = refused(
        MaskRef(path=segmentation(folder, tmp_path / "more.dcm", masks[::-1, ..., 1:])), opened(part)
    )
    assert "1 of 1 voxels of the mask lie outside its volume: mask 1x12x14 voxels of 3x2x1 mm" in message


def test_a_segmentation_of_another_grid_is_refused_with_both(write_series, folder, tmp_path, masks):
    path = segmentation(folder, tmp_path / "seg.dcm", masks[::-1, ..., :1])
    other = opened(write_series(np.zeros(SHAPE, np.int16), "other", (3.0, 2.0, 1.1)))
    assert "mask 1x12x14 voxels of 3x2x1 mm" in refused(MaskRef(path=path), other)
    assert "volume 6x12x14 voxels of 3x2x1.1 mm" in refused(MaskRef(path=path), other)


def test_segments_and_label_maps_of_another_frame_of_reference_are_refused(
    write_series, folder, tmp_path, masks
):
    path = segmentation(folder, tmp_path / "seg.dcm", masks[::-1, ..., :1])  # which states 1.5

    def series(frame: str) -> Path:
        values = {"FrameOfReferenceUID": frame}
        return write_series(masks[..., 0].astype(np.int16), frame, SPACING, values=lambda number: values)

    for mask in (path, str(series("1.5"))):
        assert read_mask(MaskRef(path=mask), opened(series("1.5"))).any()
        message = refused(MaskRef(path=mask), opened(series("1.6")))
        assert "states another FrameOfReferenceUID than the images of its volume" in message


def test_fractions_are_refused(folder, tmp_path, masks):
    path = segmentation(
        folder, tmp_path / "seg.dcm", masks[::-1, ..., :1],
        kind=highdicom.seg.SegmentationTypeValues.FRACTIONAL, dtype=np.float32,
    )  # fmt: skip
    message = refused(MaskRef(path=path), opened(folder))
    assert "the segmentation is 'FRACTIONAL', expected 'BINARY' or 'LABELMAP'" in message


def test_a_segment_without_a_frame_is_empty_and_a_cut_file_is_named(folder, tmp_path, masks):
    masks[..., 1] = False
    path = segmentation(folder, tmp_path / "seg.dcm", masks[::-1])
    volume = opened(folder)
    assert not read_mask(MaskRef(path=path, key="lesion"), volume).any()
    seg = pydicom.dcmread(path)
    seg.PixelData = seg.PixelData[:20]
    seg.save_as(path)
    assert "its frames cannot be decoded (" in refused(MaskRef(path=path, key="liver"), volume)
    seg.Rows = seg.Columns = 50000
    seg.save_as(path)
    assert "2.5 GB of voxels in files of 0.003 MB" in refused(MaskRef(path=path, key="liver"), volume)


def itk_labels(path: Path) -> np.ndarray:
    return SimpleITK.GetArrayFromImage(SimpleITK.ReadImage(str(path)))


def test_real_segmentations_are_those_of_their_authors(real_data):
    folder = real_data / "dcmqi"
    volume = opened(folder / "ct-3slice")
    liver = read_mask(MaskRef(path=str(folder / "liver.dcm")), volume)
    np.testing.assert_array_equal(liver, itk_labels(folder / "liver_seg.nrrd") > 0)
    groups = [itk_labels(folder / f"partial_overlaps-{number}.nrrd") for number in (1, 2, 3)]
    for number in range(1, 6):
        mask = read_mask(MaskRef(path=str(folder / "partial_overlaps.dcm"), label=number), volume)
        assert mask.any()
        assert any(np.array_equal(mask, group == value) for group in groups for value in np.unique(group)[1:])


@pytest.mark.parametrize("name", ["24x38x3", "23x38x3"])
def test_real_segmentations_whose_frames_do_not_end_on_a_byte(real_data, name):
    folder = real_data / "dcmqi" / name
    mask = read_mask(MaskRef(path=str(folder / "seg/label.seg")), opened(folder / "image"))
    np.testing.assert_array_equal(mask, itk_labels(folder / "nrrd/label.nrrd") > 0)


@pytest.mark.parametrize("name", ["noppv", "ppv5"])
def test_real_label_maps_of_dicom_are_read(real_data, name):
    folder = real_data / "dcmqi"
    ref = MaskRef(path=str(folder / f"sparse-labelmap-{name}.dcm"), key="Liver")
    mask = read_mask(ref, opened(folder / "24x38x3/image"))
    labels = itk_labels(folder / f"sparse_labelmap_{name}_seg.nrrd")
    np.testing.assert_array_equal(mask, labels == 1)


@pytest.mark.filterwarnings("ignore:.*Number of Frames:UserWarning")  # pydicom warns besides
@pytest.mark.parametrize("odd", ["removed", "empty", "twice"])
def test_a_value_that_is_missing_or_of_another_type_is_read_or_refused_by_name(folder, tmp_path, masks, odd):
    path, volume = segmentation(folder, tmp_path / "seg.dcm", masks[::-1, ..., :1]), opened(folder)
    elements = {element.tag: element for element in pydicom.dcmread(path).iterall() if element.VR != "OW"}
    refusals = []
    for tag, element in elements.items():
        image = pydicom.dcmread(path)
        try:
            for holder in [
                image,
                *(item for each in image.iterall() if each.VR == "SQ" for item in each.value),
            ]:
                if tag in holder and odd == "removed":
                    del holder[tag]
                elif tag in holder and element.VR != "SQ":
                    holder[tag].value = None if odd == "empty" else [element.value, element.value]
            image.save_as(tmp_path / "odd.dcm")
        except (AttributeError, OSError, TypeError, ValueError):  # pydicom writes none of it
            continue
        try:
            read_mask(MaskRef(path=str(tmp_path / "odd.dcm"), label=1), volume)
        except DataError as cause:
            refusals.append(str(cause))
    assert len(refusals) > 3
    assert all(text.startswith(f"{tmp_path}/odd.dcm: ") for text in refusals)
