"""Seventy patients with discs, drawn once."""

import sys
from pathlib import Path

import pytest
from evidcore_testing.fixtures import offered as offered

sys.path.insert(0, str(Path(__file__).parent))
from disc_cases import CYST, STONE, disc_case


@pytest.fixture(scope="session")
def discs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("discs")
    return [disc_case(folder, number) for number in range(70)]


@pytest.fixture
def healthy(tmp_path):
    return disc_case(tmp_path, 2, [])


@pytest.fixture
def sick(tmp_path):
    return disc_case(tmp_path, 1, ["cyst", "stone"], where={"cyst": CYST, "stone": STONE})
