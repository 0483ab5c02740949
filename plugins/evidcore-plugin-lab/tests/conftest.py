from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from evidcore_plugin_dicom.phantom import write_series as to_folder
from evidcore_plugin_phantoms.testing import copied_run as copied_run
from evidcore_plugin_phantoms.testing import small_run as small_run
from evidcore_testing.fixtures import evid as evid
from evidcore_testing.fixtures import offered as offered
from evidcore_testing.fixtures import real_data as real_data


@pytest.fixture
def write_series(tmp_path: Path) -> Callable[..., Path]:
    """Write a (z, y, x) array in body axes as a DICOM series in a folder of some name, and return that."""
    return lambda array, name="series", *rest, **options: to_folder(tmp_path / name, array, *rest, **options)
