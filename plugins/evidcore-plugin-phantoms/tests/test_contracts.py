"""Phantoms and the tiny language model keep their contracts."""

import pytest
from evidcore_testing import check_dataset, check_language

from evidcore.registry.factory import build


@pytest.mark.parametrize("name", ["phantom-chest", "phantom-abdomen"])
def test_phantoms(name, request):
    made = request.getfixturevalue(name.removeprefix("phantom-"))
    check_dataset(made(), other=made(seed=18))


def test_the_tiny_language_model():
    check_language(build("language", {"use": "tiny", "width": 32, "layers": 1}, given={}, where="test"))
