"""Arrays that tests write as series, and how they are read, or refused by headers and voxels alike."""

from pathlib import Path

import numpy as np
import pytest
import SimpleITK

from evidcore.api import DataError, MaskRef, VolumeRef, read, read_mask
from evidcore.data import Volume, read_geometry

SHAPE = (4, 5, 6)


def scan(shape=SHAPE, dtype=np.int16) -> np.ndarray:
    return (np.arange(np.prod(shape)).reshape(shape) - 40).astype(dtype)


def opened(path: Path | str, **options: object) -> Volume:
    return read(VolumeRef(path=str(path), **options))


def refusal(path: Path | str, **options: object) -> str:
    messages = []
    for read_what in (read_geometry, read):
        with pytest.raises(DataError) as caught:
            read_what(VolumeRef(path=str(path), **options))
        messages.append(str(caught.value))
    assert messages[0] == messages[1], "the headers alone tell"
    return messages[0]


def refused(ref: MaskRef, like: Volume) -> str:
    with pytest.raises(DataError) as caught:
        read_mask(ref, like)
    assert str(caught.value).startswith(f"{ref.path}: ")
    return str(caught.value)


def simpleitk_series(folder: Path) -> SimpleITK.Image:
    reader = SimpleITK.ImageSeriesReader()
    reader.SetFileNames(reader.GetGDCMSeriesFileNames(str(folder)))
    return reader.Execute()


def assert_placed(volume: Volume, image: SimpleITK.Image) -> None:
    """Compare where SimpleITK lays each voxel."""
    for index_xyz in np.ndindex(image.GetSize()):
        place = image.TransformIndexToPhysicalPoint(index_xyz)
        z, y, x, _ = np.linalg.inv(volume.affine) @ [*place[::-1], 1]
        assert volume.array[round(z), round(y), round(x)] == image[index_xyz]
