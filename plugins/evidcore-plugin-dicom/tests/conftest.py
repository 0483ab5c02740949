import sys
from collections.abc import Callable
from pathlib import Path

import nibabel
import numpy as np
import pytest
from evidcore_plugin_dicom import phantom
from evidcore_testing.fixtures import real_data as real_data

sys.path.insert(0, str(Path(__file__).parent))  # read_scans


@pytest.fixture
def write_series(tmp_path: Path) -> Callable[..., Path]:
    """Write a (z, y, x) array in body axes as a DICOM series in a folder of some name, and return that.

    `values` gives what else the headers of an image hold, from its number.
    """

    def to_folder(array, name="series", *rest, values=lambda number: {}, **options):
        def change(image, number):
            for key, value in values(number).items():
                setattr(image, key, value)

        return phantom.write_series(tmp_path / name, array, *rest, **{"change": change} | options)

    return to_folder


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write a (z, y, x) array in body axes, 3 x 2 x 1 mm, as a NIfTI file whose axes run to `axes`."""

    def to_file(array_zyx: np.ndarray, name: str = "scan.nii.gz", axes: str = "LPS") -> Path:
        image = nibabel.Nifti1Image(array_zyx.transpose(2, 1, 0), np.diag([-1.0, -2.0, 3.0, 1.0]))
        turn = nibabel.orientations.ornt_transform(
            nibabel.io_orientation(image.affine), nibabel.orientations.axcodes2ornt(axes)
        )
        nibabel.save(image.as_reoriented(turn), tmp_path / name)
        return tmp_path / name

    return to_file
