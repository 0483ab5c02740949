import sys
from pathlib import Path

import pytest
from evidcore_testing import tiny_language, volume_case

sys.path.insert(0, str(Path(__file__).parent))  # mutants


@pytest.fixture(scope="session")
def cases(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cases")
    return [volume_case(folder, seed) for seed in range(4)]


@pytest.fixture(scope="session")
def language(tmp_path_factory):
    return tiny_language(tmp_path_factory.mktemp("language"))
