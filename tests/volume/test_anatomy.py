"""Anatomy, not shape, proves orientation: where organs lie in real scans of every kind of file."""

from __future__ import annotations

from pathlib import Path

import nibabel
import nrrd
import numpy as np
import pydicom
import pytest
from pydicom.dataset import Dataset

from evidcore.case import MaskRef, VolumeRef
from evidcore.volume import Volume, read, read_mask, save_mask

# Labels of the organs in the label map that comes with the scan.
SPLEEN, LIVER, RIGHT_LUNG, BLADDER, VERTEBRA, AORTA = 1, 5, 14, 21, 28, 52
ORGANS = (SPLEEN, LIVER, RIGHT_LUNG, BLADDER, VERTEBRA, AORTA)


@pytest.fixture
def organs(real_data) -> Path:
    return real_data / "totalsegmentator/example_seg_fast_force_split.nii.gz"


@pytest.fixture
def scan(real_data) -> Path:
    return real_data / "totalsegmentator/example_ct.nii.gz"


def as_nifti(source: Path, path: Path, axes: str) -> Path:
    image = nibabel.load(source)
    turn = nibabel.orientations.ornt_transform(
        nibabel.io_orientation(image.affine), nibabel.orientations.axcodes2ornt(axes)
    )
    nibabel.save(image.as_reoriented(turn), path)
    return path


def as_nrrd(source: Path, path: Path, axes: str) -> Path:
    turned = nibabel.load(as_nifti(source, path.with_suffix(".nii"), axes))
    header = {
        "space": "RAS",
        "space directions": turned.affine[:3, :3].T,
        "space origin": turned.affine[:3, 3],
    }
    nrrd.write(str(path), np.asarray(turned.dataobj), header, compression_level=1)
    return path


def anatomy(volume: Volume, masks: dict[int, np.ndarray]) -> None:
    """Check a scan of the trunk in body axes: z upwards, y backwards, x to the left."""
    z, y, x = np.array([np.argwhere(masks[label]).mean(axis=0) for label in ORGANS]).T
    place = {label: (z[number], y[number], x[number]) for number, label in enumerate(ORGANS)}
    assert place[LIVER][2] < place[SPLEEN][2] - 20, "the liver lies on the patient's right"
    assert place[RIGHT_LUNG][2] < place[VERTEBRA][2]
    assert place[VERTEBRA][1] > place[AORTA][1], "the spine lies behind the aorta"
    assert place[RIGHT_LUNG][0] > place[BLADDER][0] + 50, "the lungs lie above the bladder"
    liver, lung, spine = (volume.array[masks[label]].mean() for label in (LIVER, RIGHT_LUNG, VERTEBRA))
    assert 20 < liver < 200
    assert lung < -500
    assert spine > liver, "bone is denser"


@pytest.mark.parametrize("axes", ["RAS", "LPS", "SAL"])
@pytest.mark.parametrize("convert", [as_nifti, as_nrrd])
def test_organs_lie_where_they_belong_in_files_of_any_axes(scan, organs, tmp_path, convert, axes):
    ending = ".nii" if convert is as_nifti else ".nrrd"
    volume = read(VolumeRef(path=str(convert(scan, tmp_path / f"scan{ending}", axes))))
    labels = convert(organs, tmp_path / f"organs{ending}", "LPS")
    masks = {label: read_mask(MaskRef(path=str(labels), label=label), volume) for label in ORGANS}
    anatomy(volume, masks)


@pytest.mark.parametrize("axes", ["LPS", "RPI"])
def test_organs_lie_where_they_belong_in_a_series(scan, organs, write_series, axes):
    held = read(VolumeRef(path=str(scan)))
    origin = held.affine[:3, 3]

    def change(image: Dataset, number: int) -> None:
        image.ImagePositionPatient = [
            round(place + first, 4)
            for place, first in zip(image.ImagePositionPatient, origin[::-1], strict=True)
        ]

    folder = write_series(held.array, "series", held.spacing_mm_zyx, axes, change)
    volume = read(VolumeRef(path=str(folder)))
    np.testing.assert_array_equal(volume.array, held.array)
    anatomy(volume, {label: read_mask(MaskRef(path=str(organs), label=label), volume) for label in ORGANS})


def test_a_scanner_s_own_series_shows_the_spine_behind_and_the_feet_below(real_data):
    # a real series as a scanner wrote it, not converted by us
    folder = real_data / "totalsegmentator/example_ct_dicom"
    volume = read(VolumeRef(path=str(folder)))
    labels = real_data / "totalsegmentator/example_seg_dicom.nii.gz"
    body = read_mask(MaskRef(path=str(labels)), volume)
    assert body.any()
    bone = np.argwhere(volume.array > 400)
    outline = np.argwhere(volume.array > -300)
    assert np.median(bone[:, 1]) > np.median(outline[:, 1]), "most bone lies behind the middle"
    images = [pydicom.dcmread(file, stop_before_pixels=True) for file in folder.iterdir()]
    lowest = min(images, key=lambda image: float(image.ImagePositionPatient[2]))
    assert {str(image.PatientPosition) for image in images} <= {"HFS", "FFS"}
    first = pydicom.dcmread(lowest.filename).pixel_array + float(lowest.RescaleIntercept)
    np.testing.assert_array_equal(volume.array[0], first), "z = 0 is the image nearest the feet"


def test_a_tumour_stays_on_its_tissue_in_both_files_of_a_patient(real_data, tmp_path):
    series = VolumeRef(path=str(real_data / "ibsi_validation_dicom/STS_019/CT/image"))
    drawn = MaskRef(path=str(real_data / "ibsi_validation_dicom/STS_019/CT/mask/RS.dcm"), key="GTV_Mass_CT")
    volume = read(series)
    tumour = read_mask(drawn, volume)
    assert -150 < float(np.median(volume.array[tumour])) < 150
    save_mask(tumour, series, tmp_path / "tumour.nii.gz")
    file = read(VolumeRef(path=str(real_data / "ibsi_validation/STS_019/CT_image.nii.gz")))
    np.testing.assert_array_equal(read_mask(MaskRef(path=str(tmp_path / "tumour.nii.gz")), file), tumour)
