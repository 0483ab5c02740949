from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real volumes; never copied from, quoted or printed."""
    folder = Path(os.environ.get("EVID_SHARED_DATA", Path(__file__).parents[1] / "../shared/data")).resolve()
    if not folder.is_dir():
        pytest.skip("no real volumes here: set EVID_SHARED_DATA to their folder")
    return folder


@pytest.fixture
def offered(tmp_path, monkeypatch) -> Iterator[Callable[..., ModuleType]]:
    """Return a function that makes objects of a test look like those of an installed package."""
    modules = []
    monkeypatch.syspath_prepend(tmp_path)

    def offer(package: str, entry_points: str, version: str = "1.0", **objects: object) -> ModuleType:
        name = package.replace("-", "_")
        (tmp_path / f"{name}.py").write_text("")
        info = tmp_path / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(entry_points)
        module = importlib.import_module(name)
        modules.append(name)
        for key, value in objects.items():
            setattr(module, key, value)
        return module

    yield offer
    for name in modules:
        del sys.modules[name]


BODY = {"L": (2, 1), "R": (2, -1), "P": (1, 1), "A": (1, -1), "S": (0, 1), "I": (0, -1)}  # axis in z, y, x


@pytest.fixture
def write_series(tmp_path: Path) -> Callable[..., Path]:
    """Write a (z, y, x) array in body axes as a DICOM series, one file an image, and return its folder."""

    def to_folder(
        array_zyx: np.ndarray,
        name: str = "series",
        spacing_mm_zyx: tuple[float, float, float] = (3.0, 2.0, 1.0),
        axes: str = "LPS",
        change: Callable[[Dataset, int], object] = lambda dataset, number: None,
        series: str = "1.2.3",
        uid: str = CTImageStorage,
    ) -> Path:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        axis, sense = zip(*(BODY[letter] for letter in axes), strict=True)  # of columns, rows, images
        stored = array_zyx.transpose(axis)[tuple(slice(None, None, one) for one in sense)]
        directions = np.zeros((3, 3))  # rows: way of the columns, rows and images as x, y, z
        directions[range(3), 2 - np.array(axis)] = sense
        gaps = np.array(spacing_mm_zyx)[list(axis)]
        first = [0 if one > 0 else array_zyx.shape[at] - 1 for at, one in zip(axis, sense, strict=True)]
        origin = np.zeros(3)
        for at, index in zip(axis, first, strict=True):
            origin[2 - at] = index * spacing_mm_zyx[at]
        for number in range(stored.shape[2]):
            image = Dataset()
            image.file_meta = FileMetaDataset()
            image.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
            image.SOPClassUID = image.file_meta.MediaStorageSOPClassUID = uid
            image.SOPInstanceUID = image.file_meta.MediaStorageSOPInstanceUID = f"{series}.{number + 1}"
            image.SeriesInstanceUID, image.Modality = series, "CT"
            image.ImagePositionPatient = list(origin + number * gaps[2] * directions[2])
            image.ImageOrientationPatient = [*directions[0], *directions[1]]
            image.PixelSpacing = [gaps[1], gaps[0]]  # between rows, between columns
            image.RescaleSlope, image.RescaleIntercept = 1, 0
            set_pixels(image, stored[:, :, number].T)
            if change(image, number) != "leave out":
                # the names run against the order of the images
                image.save_as(folder / f"{99 - number:02}.dcm", enforce_file_format=True)
        return folder

    return to_folder


def set_pixels(image: Dataset, plane: np.ndarray) -> None:
    """Give a data set its voxels (row, column), as they are in memory."""
    plane = np.ascontiguousarray(plane)
    image.Rows, image.Columns = plane.shape[-2:]
    image.SamplesPerPixel, image.PhotometricInterpretation = 1, "MONOCHROME2"
    image.BitsAllocated = image.BitsStored = plane.itemsize * 8
    image.HighBit, image.PixelRepresentation = image.BitsStored - 1, int(plane.dtype.kind == "i")
    image.PixelData = plane.tobytes()
    image["PixelData"].VR = "OW"
