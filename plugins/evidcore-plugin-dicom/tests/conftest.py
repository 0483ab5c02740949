import sys
from collections.abc import Callable
from pathlib import Path

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
