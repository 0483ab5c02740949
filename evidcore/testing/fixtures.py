"""Fixtures that tests of several packages share; a conftest.py imports those it wants."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real volumes; never copied from, quoted or printed."""
    beside = Path(__file__).parents[2] / "../shared/data"
    folder = Path(os.environ.get("EVID_SHARED_DATA", beside)).resolve()
    if not folder.is_dir():
        pytest.skip("no real volumes here: set EVID_SHARED_DATA to their folder")
    return folder
