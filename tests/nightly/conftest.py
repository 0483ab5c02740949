"""Tests of documents and benchmarks are marked nightly: `make test` leaves them out, CI takes turns."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.nightly)


@pytest.fixture(scope="module")
def script(request: pytest.FixtureRequest, benchmark: Callable[[str], ModuleType]) -> ModuleType:
    """The script of benchmarks/ that a test module names SCRIPT."""
    return benchmark(request.module.SCRIPT)
