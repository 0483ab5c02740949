import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from evidcore_testing.fixtures import real_data as real_data

sys.path.insert(0, str(Path(__file__).parent))  # tables_home


@pytest.fixture
def write_series(tmp_path: Path) -> Callable[..., Path]:
    """Write a (z, y, x) array in body axes as a DICOM series below tmp_path, and return its folder."""
    phantom = pytest.importorskip("evidcore_plugin_dicom.phantom")
    return lambda array, name="series", *rest, **options: phantom.write_series(
        tmp_path / name, array, *rest, **options
    )
