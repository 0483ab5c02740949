"""Tests of documents and benchmarks are marked nightly: `make test` leaves them out, CI takes turns."""

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.nightly)
