from pathlib import Path

import numpy as np
import pydicom
from pydicom.dataset import Dataset
from pydicom.sequence import Sequence
from pydicom.uid import EnhancedCTImageStorage
from read_scans import opened, refusal, scan


def enhanced(folder: Path, change=lambda groups: None) -> Path:
    """Put the images of a series into one enhanced file, in reverse order."""
    images = [pydicom.dcmread(file) for file in sorted(folder.iterdir())]  # the last image has the first name
    whole = images[0]
    groups = []
    for image in images:
        place, values, group = Dataset(), Dataset(), Dataset()
        place.ImagePositionPatient = image.ImagePositionPatient
        values.RescaleSlope, values.RescaleIntercept = image.RescaleSlope, image.RescaleIntercept
        group.PlanePositionSequence = Sequence([place])
        group.PixelValueTransformationSequence = Sequence([values])
        groups.append(group)
    direction, measures, shared = Dataset(), Dataset(), Dataset()
    direction.ImageOrientationPatient = whole.ImageOrientationPatient
    measures.PixelSpacing = whole.PixelSpacing
    shared.PlaneOrientationSequence = Sequence([direction])
    shared.PixelMeasuresSequence = Sequence([measures])
    change(groups)
    whole.NumberOfFrames = len(images)
    whole.PixelData = b"".join(image.PixelData for image in images)
    whole.SharedFunctionalGroupsSequence = Sequence([shared])
    whole.PerFrameFunctionalGroupsSequence = Sequence(groups)
    whole.SOPClassUID = whole.file_meta.MediaStorageSOPClassUID = EnhancedCTImageStorage
    for name in ("ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing", "RescaleSlope"):
        delattr(whole, name)
    path = folder.parent / "enhanced.dcm"
    whole.save_as(path)
    return path


def test_a_file_of_many_frames_is_read(write_series):
    folder = write_series(scan(), axes="PSL", values=lambda number: {"RescaleIntercept": -number})
    volume, same = opened(enhanced(folder)), opened(folder)
    np.testing.assert_array_equal(volume.array, same.array)
    assert volume.geometry.fits(same.geometry)
    assert volume.array[0, 0, 3] == scan()[0, 0, 3] - 3


def test_frames_that_do_not_say_where_they_lie_or_have_another_unit_are_refused(write_series):
    path = enhanced(write_series(scan()))
    whole = pydicom.dcmread(path)
    del whole.PerFrameFunctionalGroupsSequence
    whole.save_as(path)
    assert "enhanced.dcm: holds 4 frames and does not say where each lies" in refusal(path)
    path = enhanced(write_series(scan(), "place"), lambda groups: groups[1].pop("PlanePositionSequence"))
    assert "enhanced.dcm: ImagePositionPatient must hold 3 numbers, got nothing" in refusal(path)
    path = enhanced(
        write_series(scan(), "unit"),
        lambda groups: setattr(groups[2].PixelValueTransformationSequence[0], "RescaleType", "ED"),
    )
    assert "enhanced.dcm: its RescaleType is 'ED', which has no Hounsfield units" in refusal(path)
