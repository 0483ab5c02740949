"""A paper's recipe, which a test module names RECIPE, as published and with the module's SIZES."""

import json
import shutil
from pathlib import Path

import pytest
from evidcore_testing.fixtures import evid as evid


@pytest.fixture(scope="module")
def alone(request, tmp_path_factory):
    """The recipe in a folder without data and weights."""
    recipe = request.module.RECIPE
    return Path(shutil.copy(recipe, tmp_path_factory.mktemp("alone") / recipe.name))


@pytest.fixture(scope="module")
def checked(evid, alone):
    """What `check` says of it."""
    return json.loads(evid("check", alone, "--json").stdout)


@pytest.fixture(scope="module")
def changes(request):
    """What makes it small enough to run."""
    return [word for key, value in request.module.SIZES.items() for word in ("--set", f"{key}={value}")]
