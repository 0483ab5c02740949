"""Small DICOM series that tests write."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import UID, CTImageStorage, ExplicitVRLittleEndian

from evidcore.data import Array

BODY = {"L": (2, 1), "R": (2, -1), "P": (1, 1), "A": (1, -1), "S": (0, 1), "I": (0, -1)}  # axis in z, y, x


def write_series(
    folder: Path,
    array_zyx: Array,
    spacing_mm_zyx: tuple[float, float, float] = (3.0, 2.0, 1.0),
    axes: str = "LPS",
    change: Callable[[Dataset, int], object] = lambda dataset, number: None,
    series: str = "1.2.3",
    uid: str = CTImageStorage,
) -> Path:
    """Write an array in body axes as a series, one file an image, and return its folder.

    Args:
        folder: is made; the names in it run against the order of the images.
        array_zyx: whole numbers, shape (z, y, x).
        spacing_mm_zyx: along the body axes.
        axes: where the columns, rows and images run to, e.g. "LPS" for axial images from below.
        change: called with each image's data set and number; "leave out" leaves it out.
        series: SeriesInstanceUID.
        uid: SOP class.
    """
    folder.mkdir(parents=True, exist_ok=True)
    axis, sense = zip(*(BODY[letter] for letter in axes), strict=True)  # of columns, rows, images
    stored = array_zyx.transpose(axis)[tuple(slice(None, None, item) for item in sense)]
    directions = np.zeros((3, 3))  # rows: way of the columns, rows and images as x, y, z
    directions[range(3), 2 - np.array(axis)] = sense
    gaps = np.array(spacing_mm_zyx)[list(axis)]
    first = [0 if item > 0 else array_zyx.shape[at] - 1 for at, item in zip(axis, sense, strict=True)]
    origin = np.zeros(3)
    for at, index in zip(axis, first, strict=True):
        origin[2 - at] = index * spacing_mm_zyx[at]
    for number in range(stored.shape[2]):
        image = Dataset()
        image.file_meta = FileMetaDataset()
        image.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
        image.SOPClassUID = image.file_meta.MediaStorageSOPClassUID = UID(uid)
        image.SOPInstanceUID = image.file_meta.MediaStorageSOPInstanceUID = UID(f"{series}.{number + 1}")
        image.SeriesInstanceUID, image.Modality = series, "CT"
        image.ImagePositionPatient = list(origin + number * gaps[2] * directions[2])
        image.ImageOrientationPatient = [*directions[0], *directions[1]]
        image.PixelSpacing = [gaps[1], gaps[0]]  # between rows, between columns
        image.RescaleSlope, image.RescaleIntercept = 1, 0
        plane = np.ascontiguousarray(stored[:, :, number].T)  # as they are in memory
        image.Rows, image.Columns = plane.shape[-2:]
        image.SamplesPerPixel, image.PhotometricInterpretation = 1, "MONOCHROME2"
        image.BitsAllocated = image.BitsStored = plane.itemsize * 8
        image.HighBit, image.PixelRepresentation = image.BitsStored - 1, int(plane.dtype.kind == "i")
        image.PixelData = plane.tobytes()
        image["PixelData"].VR = "OW"
        if change(image, number) != "leave out":
            # the names run against the order of the images
            image.save_as(folder / f"{99 - number:02}.dcm", enforce_file_format=True)
    return folder
